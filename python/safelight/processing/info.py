"""`ProcessingInfo`: what a model says about itself, and which decoder serves which modality.

The only place that chooses decoders, because this layer knows the model: binding of the model,
overridden by the server's options, overridden by the request's where the operator trusts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, final

from safelight.budget import DecodedBudget
from safelight.errors import ConfigurationError, RequestError
from safelight.media import ImageMediaIO, MediaIO
from safelight.parse import MultiModalDataParser
from safelight.processing import hf
from safelight.processing.identity import IdentityRules, UUIDPolicy

__all__ = ["ProcessingInfo"]

_DEFAULT_LIMIT_PER_PROMPT = 999

# An operator may set these to 0 for a model that does not take them: it is so already.
_KNOWN_MODALITIES = frozenset(("image", "video", "audio"))


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

    Raises:
        ConfigurationError: An option is malformed, or of a modality that the model does not take.
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
        self.media_io_kwargs = _mapping("media_io_kwargs", media_io_kwargs)
        self.mm_processor_kwargs = _mapping("mm_processor_kwargs", mm_processor_kwargs)
        self.limit_mm_per_prompt = _mapping("limit_mm_per_prompt", limit_mm_per_prompt)
        self.trust_request_kwargs = trust_request_kwargs
        self._identity_rules = IdentityRules(
            model_id or "", mm_hasher_algorithm, mm_uuid_policy, mm_uuid_salt
        )
        self._model_id = model_id
        self._check_options()

    def _check_options(self) -> None:
        """Refuse at once what would fail every request."""
        for modality, options in self.media_io_kwargs.items():
            if modality not in self.media_ios:
                raise ConfigurationError(f"media_io_kwargs: the model takes no {modality} input")
            _mapping(f"media_io_kwargs of {modality}", options)
        for modality in self.media_ios:
            try:
                self._load_media_io(modality, None, None)
            except Exception as error:
                raise ConfigurationError(f"media_io_kwargs of {modality}: {error}") from error
        supported = self.get_supported_mm_limits()
        for modality, limit in self.limit_mm_per_prompt.items():
            if type(limit) is not int or limit < 0:
                raise ConfigurationError(
                    f"limit_mm_per_prompt of {modality} must be an int that is not negative"
                )
            if modality not in supported and (limit or modality not in _KNOWN_MODALITIES):
                raise ConfigurationError(
                    f"limit_mm_per_prompt: the model takes no {modality} input"
                )
        self._identity_rules.validate()

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
        return hf.fingerprint(self.hf_processor, self.get_fingerprint_factors())

    def get_fingerprint_factors(self) -> dict[str, Any]:
        """What decides an item's outputs besides the transformers processor; a family adds its own.

        Values are JSON's, or are told apart by their ``repr``. Decode options are in it as the
        decoders' specs, so that a default that is spelled out changes nothing.
        """
        media_ios = {modality: self.get_media_io(modality) for modality in self.media_ios}
        return {
            "mm_processor_kwargs": self.mm_processor_kwargs,
            "media_ios": {
                modality: [hf.class_name(io), io.get_decode_spec().canonical_bytes().hex()]
                for modality, io in media_ios.items()
            },
        }

    @property
    def model_id(self) -> str:
        """Name of the model in hashes."""
        return self.fingerprint.hex() if self._model_id is None else self._model_id

    @property
    def identity_rules(self) -> IdentityRules:
        """What identifies the model's items."""
        return replace(self._identity_rules, model_id=self.model_id)

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

    def validate_counts(self, counts: Mapping[str, int]) -> None:
        """Refuse a modality that the model does not take, or too many items of one.

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

    def get_placeholder_str(self, modality: str) -> str | None:
        """The text that stands for an item in a prompt, for chat templates that read text alone.

        None where the model has none; media is then refused with such a template.
        """
        token = getattr(self.hf_processor, f"{modality}_token", None)
        return token if isinstance(token, str) else None

    @final
    def get_media_io(
        self,
        modality: str,
        media_io_kwargs: Mapping[str, Any] | None = None,
        *,
        decoded_budget: DecodedBudget | None = None,
    ) -> MediaIO[Any]:
        """Return the decoder of `modality` for one request; a family overrides `_make_media_io`.

        Args:
            modality: ``"image"``, or another that the model takes.
            media_io_kwargs: The request's options for it.
            decoded_budget: What the request's media may decode to.

        Raises:
            RequestError: No decoder serves the modality, or an option is unknown, out of range,
                or not the client's to set.
        """
        if modality not in self.media_ios:
            raise RequestError(f"the model takes no {modality} input")
        if media_io_kwargs and not self.trust_request_kwargs:
            raise RequestError("media_io_kwargs are not accepted from requests")
        try:
            return self._load_media_io(modality, media_io_kwargs, decoded_budget)
        except (TypeError, ValueError) as error:
            raise RequestError(f"media_io_kwargs of {modality} are not valid") from error

    def _load_media_io(
        self,
        modality: str,
        media_io_kwargs: Mapping[str, Any] | None,
        decoded_budget: DecodedBudget | None,
    ) -> MediaIO[Any]:
        kwargs = self.media_ios[modality].merge_kwargs(
            self.media_io_kwargs.get(modality), media_io_kwargs
        )
        return self._make_media_io(modality, kwargs, decoded_budget=decoded_budget)

    def _make_media_io(
        self, modality: str, kwargs: Mapping[str, Any], *, decoded_budget: DecodedBudget | None
    ) -> MediaIO[Any]:
        """Make the decoder of `modality` with the server's and the request's options merged.

        Raises:
            TypeError: An option is unknown.
            ValueError: An option is out of its range.
        """
        make: Callable[..., MediaIO[Any]] = self.media_ios[modality]  # each has its own options
        return make(**kwargs, decoded_budget=decoded_budget)


def _mapping(name: str, options: object) -> dict[str, Any]:
    if options is None:
        return {}
    if not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise ConfigurationError(f"{name} must be a mapping with names as keys")
    return dict(options)
