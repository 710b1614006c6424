"""What a request is to a processor, and what comes of it.

Owns the identity of a request's items: which factors enter a hash, and when a client's UUID
stands for the media. Must never decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from safelight.cache.processor import MultiModalProcessorOnlyCache
from safelight.hashing import MultiModalHasher
from safelight.inputs import MultiModalKwargsItems, PlaceholderRange
from safelight.parse import MultiModalDataItems
from safelight.ref import MediaRef

__all__ = [
    "MultiModalHashes",
    "MultiModalInputs",
    "ProcessorInputs",
    "scope_mm_kwargs",
]

MultiModalHashes = dict[str, list[str]]
"""Hash of each item by modality, in the order of the request: hex, or a client's UUID."""

# Names of transformers: options under these apply to one modality only.
_SCOPES = {"image": "images_kwargs", "video": "videos_kwargs", "audio": "audio_kwargs"}
_SCOPE_NAMES = frozenset((*_SCOPES.values(), "text_kwargs", "common_kwargs"))


def scope_mm_kwargs(kwargs: Mapping[str, Any], modality: str) -> dict[str, Any]:
    """Return the processor options that `modality` sees.

    Options under ``images_kwargs`` and its kin are seen by their modality alone and win over the
    flat ones, which all modalities share.
    """
    scoped = {name: value for name, value in kwargs.items() if name not in _SCOPE_NAMES}
    own = kwargs.get(_SCOPES.get(modality, ""))
    if isinstance(own, Mapping):
        scoped.update(own)
    return scoped


class MultiModalInputs(TypedDict):
    """A processed request: everything that a model runner takes. Lists are fresh.

    Keys:
        type: ``"multimodal"``.
        prompt_token_ids: Token ids with every placeholder expanded.
        mm_kwargs: Processed items, shared with the cache and read-only.
        mm_hashes: Identity of each item.
        mm_placeholders: Where each item's tokens are.
        mm_cache_hits: Whether a cache, or an equal item before it in the request, served the item.
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
    """

    prompt: str | list[int] = field(repr=False)
    mm_data_items: MultiModalDataItems
    mm_uuid_items: Mapping[str, Sequence[str | None]] | None = None
    media_io_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hf_processor_mm_kwargs: Mapping[str, Any] = field(default_factory=dict)
    cache: MultiModalProcessorOnlyCache | None = None

    def get_mm_uuid(self, modality: str, index: int) -> str | None:
        """The client's identity for an item, or None."""
        uuids = (self.mm_uuid_items or {}).get(modality)
        return None if uuids is None else uuids[index]

    def get_mm_hashes(self, model_id: str, algorithm: str = "blake3") -> MultiModalHashes:
        """Return the identity of every item, decoding none.

        A hash covers the model, the item, and the options of its modality where there are any,
        in whatever order they are given.
        The decode options are left out for a ref, whose key has them. A UUID stands for the
        item, so that with it all options count; a UUID without options is used verbatim.

        Raises:
            TypeError: An item is of a type that has no canonical bytes.
        """
        hashes: MultiModalHashes = {}
        for modality, items in self.mm_data_items.items():
            options = {
                "media_io_kwargs": dict(self.media_io_kwargs.get(modality) or {}),
                "mm_processor_kwargs": scope_mm_kwargs(self.hf_processor_mm_kwargs, modality),
            }
            options = {name: _in_order(value) for name, value in options.items() if value}
            hashes[modality] = [
                _hash_item(
                    algorithm,
                    model_id,
                    modality,
                    items.get_raw(index),
                    self.get_mm_uuid(modality, index),
                    options,
                )
                for index in range(items.get_count())
            ]
        return hashes


def _in_order(value: Any) -> Any:
    """Return `value` with every mapping sorted by name: the hasher goes by their order."""
    if isinstance(value, Mapping):
        return {name: _in_order(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [_in_order(item) for item in value]
    return value


def _hash_item(
    algorithm: str,
    model_id: str,
    modality: str,
    item: object,
    uuid: str | None,
    options: Mapping[str, Any],
) -> str:
    factors = dict(options)
    if uuid is not None:
        if not factors:
            return uuid
        item = uuid
    elif isinstance(item, MediaRef):
        factors.pop("media_io_kwargs", None)
    return MultiModalHasher.hash_kwargs(
        algorithm, **{"model_id": model_id, modality: item, **factors}
    )
