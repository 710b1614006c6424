"""The exceptions that safelight raises on purpose. Imports nothing of ours.

::

    SafelightError
    ├── SpecError            (ValueError)    settings that cannot be an identity
    ├── RequestError         (ValueError)    a request, chat or option that is malformed
    ├── ConfigurationError   (ValueError)    an operator's option that is malformed; names it
    ├── FetchError                           the bytes could not be had, or must not be
    │   ├── TransientFetchError                 after retries; another attempt may help
    │   ├── BlockedURLError      (ValueError)   malformed, or its scheme, host or path is refused
    │   ├── FetchRefusedError    (ValueError)   permanent: a 4xx answer, a body of another length
    │   └── PayloadTooLargeError (ValueError)   over max_bytes or a budget
    ├── MediaError           (ValueError)    the bytes are not usable; .modality .index
    │   ├── HeaderError                         no header that can be read; .format .size
    │   ├── DecodeError                         a header, but no pixels, frames or samples
    │   ├── UnsupportedMediaError               a format that is not served; .format .size
    │   └── LimitError                          over a limit; .limit .actual
    ├── RawRefError          (ValueError)    a raw ref that is malformed or does not match its asset
    ├── CacheMissError                       the two sides of a cache have drifted; .hashes
    └── ReleasedError        (RuntimeError)  decode() after release(): a caller's bug

What a client's bytes or request caused is a ``ValueError`` too, and so is an option that a server
was built with. Every error pickles with its attributes. No message holds payload bytes, object
addresses, server paths or resolved addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

__all__ = [
    "BlockedURLError",
    "CacheMissError",
    "ConfigurationError",
    "DecodeError",
    "FetchError",
    "FetchRefusedError",
    "HeaderError",
    "LimitError",
    "MediaError",
    "PayloadTooLargeError",
    "RawRefError",
    "ReleasedError",
    "RequestError",
    "SafelightError",
    "SpecError",
    "TransientFetchError",
    "UnsupportedMediaError",
]


class SafelightError(Exception):
    """Base of everything that safelight raises on purpose.

    Attributes:
        message: The message alone, without a position.
    """

    # Names of the keyword attributes that a subclass adds: what pickling has to carry.
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[Callable[..., SafelightError], tuple[Any, ...]]:
        fields = {name: getattr(self, name) for name in self._fields}
        return _restore, (type(self), self.message, fields)


def _restore(cls: type[SafelightError], message: str, fields: dict[str, Any]) -> SafelightError:
    return cls(message, **fields)


class SpecError(SafelightError, ValueError):
    """Settings that cannot be part of an identity: not JSON, or a non-finite number."""


class RequestError(SafelightError, ValueError):
    """A request, chat or option that is malformed, before any media is looked at."""


class ConfigurationError(SafelightError, ValueError):
    """An option of the operator's that is malformed, by its name; never a client's fault."""


class _LocatedError(SafelightError):
    """An error that may know which item of the request it is about.

    Attributes:
        modality: ``"image"``, ``"video"`` or ``"audio"``; None where it is not known.
        index: Position among all items of the modality in the request, from 0.
    """

    _fields: ClassVar[tuple[str, ...]] = ("modality", "index")

    def __init__(
        self, message: str = "", *, modality: str | None = None, index: int | None = None
    ) -> None:
        super().__init__(message)
        self.modality = modality
        self.index = index

    def __str__(self) -> str:
        if self.modality is None:
            return self.message
        position = self.modality if self.index is None else f"{self.modality} {self.index}"
        return f"{position}: {self.message}"

    def at(self, modality: str, index: int) -> Self:
        """Return a copy that names its item: the message reads ``image 3: …``."""
        fields = {name: getattr(self, name) for name in self._fields}
        return type(self)(self.message, **{**fields, "modality": modality, "index": index})


class _BoundedError(_LocatedError):
    """An error that knows the limit that was exceeded.

    Attributes:
        limit: The largest value allowed, in the unit that the message names.
        actual: The value met; None where only "more" is known.
    """

    _fields: ClassVar[tuple[str, ...]] = ("modality", "index", "limit", "actual")

    def __init__(
        self,
        message: str = "",
        *,
        limit: int | None = None,
        actual: int | None = None,
        modality: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message, modality=modality, index=index)
        self.limit = limit
        self.actual = actual


class FetchError(_LocatedError):
    """The bytes could not be had, or must not be."""


class TransientFetchError(FetchError):
    """The bytes could not be had, after retries. Another attempt, later, may help."""


class BlockedURLError(FetchError, ValueError):
    """The URL is malformed, or its scheme, host or path is refused, on any hop."""


class FetchRefusedError(FetchError, ValueError):
    """The fetch failed for good: a 4xx answer, or a body that lies about its length."""


class PayloadTooLargeError(_BoundedError, FetchError, ValueError):
    """The payload is over ``max_bytes`` or over the request's download budget, in bytes."""


class MediaError(_LocatedError, ValueError):
    """The bytes are not usable as media."""


class _DeclaredError(MediaError):
    """An error that knows what the header declared before it failed.

    Attributes:
        format: The format of an image, as Pillow names it; None where it is not known.
        size: Width and height of an image in pixels as declared so far, or None.
    """

    _fields: ClassVar[tuple[str, ...]] = ("modality", "index", "format", "size")

    def __init__(
        self,
        message: str = "",
        *,
        format: str | None = None,
        size: tuple[int, int] | None = None,
        modality: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message, modality=modality, index=index)
        self.format = format
        self.size = size


class HeaderError(_DeclaredError):
    """The header cannot be read: not media at all, cut short, or damaged."""


class DecodeError(MediaError):
    """The header was readable, but the pixels, frames or samples are not."""


class UnsupportedMediaError(_DeclaredError):
    """A format that is recognized but not served."""


class LimitError(_BoundedError, MediaError):
    """The media is over a limit; it was refused before it was decoded."""


class RawRefError(_LocatedError, ValueError):
    """A raw media ref that is malformed, of an unknown family, or does not match its asset."""


class CacheMissError(SafelightError):
    """The two sides of a mirrored cache have drifted apart; the request can be tried again.

    Attributes:
        hashes: Every hash of the request that the receiving side does not hold.
    """

    _fields = ("hashes",)

    def __init__(self, message: str = "", *, hashes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.hashes = tuple(hashes)


class ReleasedError(SafelightError, RuntimeError):
    """A ref was released before it was decoded, and then asked for its media."""
