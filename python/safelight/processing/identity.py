"""What an item is told apart by: the hash of its content, or the name that a client gave it.

Owns which factors enter a hash, and what becomes of a client's UUID. A name never equals a hash of
content: not in what is emitted, and not in a cache. Must never decode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from safelight.errors import ConfigurationError, RequestError
from safelight.hashing import MultiModalHasher
from safelight.ref import MediaRef

__all__ = ["IdentityRules", "ItemIdentity", "UUIDPolicy", "scope_mm_kwargs"]

UUIDPolicy = Literal["verbatim", "salted", "ignored"]
"""What becomes of a client's UUID: used as it is, hashed with the operator's salt, or nothing."""

# As many digits as any algorithm of `MultiModalHasher` gives.
_CONTENT_HASH = re.compile(r"(?:[0-9A-Fa-f]{64}){1,2}")

# The bytes of a ref's key.
_KEY_BYTES = 32

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


class ItemIdentity(NamedTuple):
    """What an item is told apart by."""

    modality: str
    """Its modality: one UUID may name an image and something else."""
    mm_hash: str
    """What is emitted for it."""
    is_name: bool
    """Whether it comes of a client's UUID, and not of content."""

    @property
    def cache_name(self) -> str:
        """What a cache of ours knows the item by; no name is a content's."""
        return f"{self.modality}:{'name' if self.is_name else 'content'}:{self.mm_hash}"


@dataclass(frozen=True)
class IdentityRules:
    """The operator's part in identities.

    Attributes:
        model_id: Name of the model in hashes.
        algorithm: Of `MultiModalHasher`.
        uuid_policy: What becomes of a client's UUID.
        uuid_salt: What salted UUIDs are hashed with: a tenant's name, or a secret.
    """

    model_id: str
    algorithm: str = "blake3"
    uuid_policy: UUIDPolicy = "verbatim"
    uuid_salt: str = ""

    def validate(self) -> None:
        """Refuse what is no option.

        Raises:
            ConfigurationError: Names the option.
        """
        if self.uuid_policy not in get_args(UUIDPolicy):
            known = ", ".join(get_args(UUIDPolicy))
            raise ConfigurationError(f"mm_uuid_policy must be one of {known}")
        if (self.uuid_policy == "salted") != bool(self.uuid_salt):
            raise ConfigurationError(
                "mm_uuid_salt goes with the mm_uuid_policy salted, and salted with it"
            )
        try:
            MultiModalHasher.hash_kwargs(self.algorithm)
        except (RequestError, TypeError) as error:
            raise ConfigurationError(f"mm_hasher_algorithm: {error}") from error

    def identify(
        self,
        modality: str,
        item: object,
        uuid: str | None,
        media_io_kwargs: Mapping[str, Mapping[str, Any]],
        mm_processor_kwargs: Mapping[str, Any],
    ) -> ItemIdentity:
        """Return the identity of an item under the options of its request.

        A hash covers the model, the item, and the options of its modality where there are any,
        in whatever order they are given. The decode options are left out for a ref, whose key has
        them. A UUID stands for the item, so that with it all options count. A UUID without options
        is emitted verbatim, unless it has the shape of a content hash, 64 or 128 hexadecimal
        digits: then it is hashed, as what it is.

        Raises:
            TypeError: The item is of a type that has no canonical bytes.
        """
        options = {
            "media_io_kwargs": dict(media_io_kwargs.get(modality) or {}),
            "mm_processor_kwargs": scope_mm_kwargs(mm_processor_kwargs, modality),
        }
        factors = {name: _in_order(value) for name, value in options.items() if value}
        if uuid is not None and self.uuid_policy != "ignored":
            # With options it is hashed in the place of the item, which may be 32 bytes of a key.
            is_like_content = bool(factors) and len(uuid.encode()) == _KEY_BYTES
            if self.uuid_salt or is_like_content or _CONTENT_HASH.fullmatch(uuid):
                # Under names that no content is hashed under.
                factors |= {"modality": modality, "uuid": uuid, "uuid_salt": self.uuid_salt}
            elif factors:
                factors[modality] = uuid
            else:
                return ItemIdentity(modality, uuid, is_name=True)
            return ItemIdentity(modality, self._hash(factors), is_name=True)
        if isinstance(item, MediaRef):
            factors.pop("media_io_kwargs", None)
        return ItemIdentity(modality, self._hash({**factors, modality: item}), is_name=False)

    def _hash(self, factors: Mapping[str, object]) -> str:
        named: dict[str, Any] = {"model_id": self.model_id, **factors}
        return MultiModalHasher.hash_kwargs(self.algorithm, **named)


def _in_order(value: Any) -> Any:
    """Return `value` with every mapping sorted by name: the hasher goes by their order."""
    if isinstance(value, Mapping):
        return {name: _in_order(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [_in_order(item) for item in value]
    return value
