"""`ProcessingInfo`: what a model says about itself, and which decoder serves which modality.

The only place that chooses decoders, because this layer knows the model: binding of the model,
overridden by the server's options, overridden by the request's where the operator trusts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

from safelight.budget import DecodedBudget
from safelight.errors import RequestError
from safelight.media import ImageMediaIO, MediaIO
from safelight.parse import MultiModalDataItems, MultiModalDataParser
from safelight.processing import hf
from safelight.processing.identity import UUIDPolicy

__all__ = ["ProcessingInfo"]

_DEFAULT_LIMIT_PER_PROMPT = 999


class ProcessingInfo:
    """A model's processor with the operator's options.

    Args:
        hf_processor: A transformers processor: tokenizer and image processor in one.
        model_id: Name of the model in hashes; None names it by its fingerprint.
        media_io_kwargs: The server's decode options by modality.
        mm_processor_kwargs: The server's processor options.
        limit_mm_per_prompt: Items allowed in one prompt, by modality.
        mm_hasher_algorithm: ``"blake3"``, ``"sha256"`` or ``"sha512"``.
        mm_uuid_policy: What becomes of a client's UUID for an item: ``"verbatim"`` names the item
            so; ``"salted"`` hashes it with `mm_uuid_salt`, so that tenants with other salts share
            nothing; ``"ignored"`` identifies items by content alone.
        mm_uuid_salt: What goes with ``"salted"``.
        trust_request_kwargs: Whether a request may override decode and processor options, which
            decide what an item costs.
    """

    # Decoders by modality; a family adds or replaces its own.
    media_ios: ClassVar[Mapping[str, type[MediaIO[Any]]]] = {"image": ImageMediaIO}

    def __init__(
        self,
        hf_processor: Any,
        *,
        model_id: str | None = None,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        limit_mm_per_prompt: Mapping[str, int] | None = None,
        mm_hasher_algorithm: str = "blake3",
        mm_uuid_policy: UUIDPolicy = "verbatim",
        mm_uuid_salt: str = "",
        trust_request_kwargs: bool = False,
    ) -> None:
        self.hf_processor = hf_processor
        self.media_io_kwargs = dict(media_io_kwargs or {})
        self.mm_processor_kwargs = dict(mm_processor_kwargs or {})
        self.limit_mm_per_prompt = dict(limit_mm_per_prompt or {})
        self.mm_hasher_algorithm = mm_hasher_algorithm
        self.mm_uuid_policy: UUIDPolicy = mm_uuid_policy
        self.mm_uuid_salt = mm_uuid_salt
        self.trust_request_kwargs = trust_request_kwargs
        self._model_id = model_id

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the processor."""
        return self.hf_processor.tokenizer

    @property
    def image_processor(self) -> Any:
        """The image processor of the processor."""
        return self.hf_processor.image_processor

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that tell apart processors whose outputs may differ."""
        return hf.fingerprint(self.hf_processor, self.mm_processor_kwargs)

    @property
    def model_id(self) -> str:
        """Name of the model in hashes."""
        return self.fingerprint.hex() if self._model_id is None else self._model_id

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Items of each modality that the model takes in one prompt; None is any number."""
        return {"image": None}

    @property
    def allowed_mm_limits(self) -> dict[str, int]:
        """Items of each modality that a prompt may bring: the model's limit and the operator's."""
        return {
            modality: min(
                self.limit_mm_per_prompt.get(modality, _DEFAULT_LIMIT_PER_PROMPT),
                _DEFAULT_LIMIT_PER_PROMPT if supported is None else supported,
            )
            for modality, supported in self.get_supported_mm_limits().items()
        }

    def validate_num_items(self, items: MultiModalDataItems) -> None:
        """Refuse a modality that the model does not take, or too many items of one.

        Raises:
            RequestError: The prompt brings more items than it may.
        """
        self.validate_counts(items.get_all_counts())

    def validate_counts(self, counts: Mapping[str, int]) -> None:
        """Refuse numbers of items by modality as `validate_num_items` does, before there are any.

        Raises:
            RequestError: The prompt brings more items than it may.
        """
        allowed = self.allowed_mm_limits
        for modality, count in counts.items():
            if modality not in allowed:
                raise RequestError(f"the model takes no {modality} input")
            if count > allowed[modality]:
                raise RequestError(
                    f"the prompt has {count} {modality} items, "
                    f"over limit_mm_per_prompt {allowed[modality]}"
                )

    def get_data_parser(self) -> MultiModalDataParser:
        """The parser of the model's media."""
        return MultiModalDataParser()

    def get_media_io(
        self,
        modality: str,
        media_io_kwargs: Mapping[str, Any] | None = None,
        *,
        decoded_budget: DecodedBudget | None = None,
    ) -> MediaIO[Any]:
        """Return the decoder of `modality` for one request.

        Args:
            modality: ``"image"``, or another that the model takes.
            media_io_kwargs: The request's options for it.
            decoded_budget: What the request's media may decode to.

        Raises:
            RequestError: No decoder serves the modality, or an option is unknown, out of range,
                or not the client's to set.
        """
        media_io = self.media_ios.get(modality)
        if media_io is None:
            raise RequestError(f"the model takes no {modality} input")
        if media_io_kwargs and not self.trust_request_kwargs:
            raise RequestError("media_io_kwargs are not accepted from requests")
        make: Callable[..., MediaIO[Any]] = media_io  # each modality has options of its own
        try:
            kwargs = media_io.merge_kwargs(self.media_io_kwargs.get(modality), media_io_kwargs)
            return make(**kwargs, decoded_budget=decoded_budget)
        except (TypeError, ValueError) as error:
            raise RequestError(f"media_io_kwargs of {modality} are not valid") from error
