"""What a request is to a processor, and what comes of it. Must never decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from safelight.cache.processor import MultiModalProcessorOnlyCache, ProcessorCacheEntry
from safelight.errors import RequestError
from safelight.inputs import ItemPlace, MultiModalKwargsItems, PlaceholderRange, check_uuid
from safelight.parse import MultiModalDataItems
from safelight.processing.identity import IdentityRules, ItemIdentity

__all__ = [
    "MultiModalHashes",
    "MultiModalInputs",
    "ProcessorInputs",
    "hashes_of",
]

MultiModalHashes = dict[str, list[str]]
"""Hash of each item by modality, in the order of the request: hex, or a client's UUID."""


def hashes_of(identities: Mapping[str, Sequence[ItemIdentity]]) -> MultiModalHashes:
    """Return what is emitted of identities."""
    return {modality: [item.mm_hash for item in items] for modality, items in identities.items()}


class MultiModalInputs(TypedDict):
    """A processed request: everything that a model runner takes. Lists are fresh.

    Keys:
        type: ``"multimodal"``.
        prompt_token_ids: Token ids with every placeholder expanded.
        mm_kwargs: Processed items, shared with the cache and read-only.
        mm_hashes: Identity of each item.
        mm_placeholders: Where each item's tokens are.
        mm_cache_hits: Whether the item was served by a cache, by another request that wanted it at
            the same time, or by an equal item of the request.
    """

    type: Literal["multimodal"]
    prompt_token_ids: list[int]
    mm_kwargs: MultiModalKwargsItems
    mm_hashes: MultiModalHashes
    mm_placeholders: dict[str, list[PlaceholderRange]]
    mm_cache_hits: dict[str, list[bool]]


@dataclass(frozen=True)
class ProcessorInputs:
    """A request as a processor takes it.

    Attributes:
        prompt: Text, or token ids; one placeholder token an item, in the order of the items.
        mm_data_items: Parsed media by modality.
        mm_uuid_items: A client's identity for each item, or None; by modality.
        media_io_kwargs: Decode options of the request by modality.
        hf_processor_mm_kwargs: Processor options of the request.
        cache: Processor cache to use; None processes everything.
        mm_entries: Entries that a cache had for items before their media was fetched. They serve
            the items whatever the cache does in the meantime.
        request_id: Names the items after the request alone, whatever they are and whatever the
            client calls them: for a server that compares identities nowhere. None identifies them.
    """

    prompt: str | list[int] = field(repr=False)
    mm_data_items: MultiModalDataItems
    mm_uuid_items: Mapping[str, Sequence[str | None]] | None = None
    media_io_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hf_processor_mm_kwargs: Mapping[str, Any] = field(default_factory=dict)
    cache: MultiModalProcessorOnlyCache | None = None
    mm_entries: Mapping[ItemPlace, ProcessorCacheEntry] = field(default_factory=dict)
    request_id: str | None = None

    def validate(self) -> None:
        """Refuse options that are no options, and UUIDs that are not one an item.

        Raises:
            RequestError: Says which.
        """
        for options in (self.hf_processor_mm_kwargs, self.media_io_kwargs):
            if not isinstance(options, Mapping):
                raise RequestError("processor and decode options must be objects")
        for modality, uuids in (self.mm_uuid_items or {}).items():
            count = self.mm_data_items.get_count(modality, strict=False)
            if len(uuids) != count:
                raise RequestError(f"there are {len(uuids)} uuids for {count} {modality} items")
            for index, uuid in enumerate(uuids):
                if uuid is not None:
                    check_uuid(uuid, f"the uuid of {modality} {index}")

    @property
    def usable_cache(self) -> MultiModalProcessorOnlyCache | None:
        """The cache that may serve the request: none where an item skips the processor."""
        skips = any(items.get_passthrough_data() for items in self.mm_data_items.values())
        return None if skips else self.cache

    def get_mm_uuid(self, modality: str, index: int) -> str | None:
        """The client's identity for an item, or None."""
        uuids = (self.mm_uuid_items or {}).get(modality)
        return None if uuids is None else uuids[index]

    def identify(self, rules: IdentityRules) -> dict[str, list[ItemIdentity]]:
        """Return the identity of every item by modality, decoding none.

        Raises:
            TypeError: An item is of a type that has no canonical bytes.
        """
        return {
            modality: [
                self._identify(rules, modality, items.get_raw(index), index)
                for index in range(items.get_count())
            ]
            for modality, items in self.mm_data_items.items()
        }

    def get_mm_hashes(self, model_id: str, algorithm: str = "blake3") -> MultiModalHashes:
        """Return what is emitted as the identity of every item, decoding none.

        A hash covers the model, the item or its UUID, and the options of its modality; a UUID
        without options is used verbatim. `IdentityRules.identify` has the whole rule.

        Raises:
            TypeError: An item is of a type that has no canonical bytes.
        """
        return hashes_of(self.identify(IdentityRules(model_id, algorithm)))

    def _identify(
        self, rules: IdentityRules, modality: str, item: object, index: int
    ) -> ItemIdentity:
        if self.request_id is not None:
            return ItemIdentity(modality, f"{self.request_id}-{modality}-{index}", is_name=True)
        return rules.identify(
            modality,
            item,
            self.get_mm_uuid(modality, index),
            self.media_io_kwargs,
            self.hf_processor_mm_kwargs,
        )
