"""`MediaIO`: how the bytes of one modality become a ref, and the media itself.

Owns the entry points that every modality has: bytes, base64 and files, each decoded or as a ref.
Must never fetch anything, nor decode while it makes a ref.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

from safelight._safelight import decode_base64
from safelight.media.plain import is_plain, plain
from safelight.probe import NeedMoreBytes
from safelight.ref import MediaRef
from safelight.spec import DecodeSpec

__all__ = ["MediaIO", "outcome"]

T = TypeVar("T")


def outcome(call: Callable[..., T], *args: Any) -> T | Exception:
    """Return what `call` returns, or the exception that it raises."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - handed on in the place of a result
        return error


class MediaIO(ABC, Generic[T]):
    """Decoding of one modality under fixed settings.

    A subclass implements `load_bytes`, names what the result depends on in `get_decode_spec`,
    and may refuse early in `load_bytes_ref` and `check_prefix`.
    """

    @classmethod
    def merge_kwargs(
        cls,
        default_kwargs: Mapping[str, Any] | None,
        runtime_kwargs: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return the server's options overridden by the request's."""
        return {**(default_kwargs or {}), **(runtime_kwargs or {})}

    def get_max_bytes(self) -> int | None:
        """The largest encoded payload accepted, in bytes; None leaves it to the transport."""
        return None

    def get_decode_spec(self) -> DecodeSpec:
        """What the decoded media depends on besides the payload."""
        return DecodeSpec()

    def check_prefix(self, data: bytes) -> NeedMoreBytes | None:
        """Judge a payload by its first bytes, while the rest is still on its way.

        Returns:
            `NeedMoreBytes` while `data` is too short to judge; None once there is nothing to
            refuse, after which it need not be called again.

        Raises:
            MediaError: The whole payload would be refused.
        """
        del data
        return None

    @abstractmethod
    def load_bytes(self, data: bytes) -> T:
        """Decode an encoded payload now.

        Raises:
            MediaError: The payload cannot be decoded, or is over a limit.
        """

    @plain
    def load_base64(self, media_type: str, data: str) -> T:
        """Decode a base64 payload now. `media_type` is the caller's word; the bytes decide.

        Raises:
            MediaError: As `load_bytes`, or `data` is not strict base64.
        """
        del media_type
        return self.load_bytes(decode_base64(data))

    @plain
    def load_file(self, filepath: str | PathLike[str]) -> T:
        """Decode a file now.

        Raises:
            MediaError: As `load_bytes`.
            OSError: The file cannot be read.
        """
        return self.load_bytes(Path(filepath).read_bytes())

    def load_bytes_ref(self, data: bytes) -> MediaRef[T]:
        """Return a ref that decodes `data` when asked.

        Raises:
            LimitError: The header alone shows that the media is over a limit.
        """
        return MediaRef(partial(self.load_bytes, data), data, self.get_decode_spec())

    def load_bytes_refs(self, payloads: Sequence[bytes]) -> list[MediaRef[T] | Exception]:
        """As `load_bytes_ref` for each payload; what it raises stands in the place of a ref."""
        return [outcome(self.load_bytes_ref, payload) for payload in payloads]

    def copy(self, media: T) -> T:
        """Return a copy of decoded media that shares nothing writable with it.

        Raises:
            LimitError: The copy is over the decode budget.
        """
        return copy.deepcopy(media)

    @plain
    def load_base64_ref(self, media_type: str, data: str) -> MediaRef[T]:
        """Return a ref to a base64 payload; the base64 is decoded at once.

        Raises:
            DecodeError: `data` is not strict base64 (RFC 4648 section 4, padded, no whitespace).
            LimitError: As `load_bytes_ref`.
        """
        if is_plain(self.load_base64):
            return self.load_bytes_ref(decode_base64(data))
        # The media type is all that an override knows besides, so it may decide.
        spec = self.get_decode_spec().extend(media_type=media_type)
        return MediaRef(partial(self.load_base64, media_type, data), decode_base64(data), spec)

    def load_file_ref(self, filepath: str | PathLike[str]) -> MediaRef[T]:
        """Return a ref to the content of a file; the file is read at once.

        Raises:
            LimitError: As `load_bytes_ref`.
            OSError: The file cannot be read.
        """
        data = Path(filepath).read_bytes()
        if is_plain(self.load_file):
            return self.load_bytes_ref(data)
        return MediaRef(partial(self.load_file, filepath), data, self.get_decode_spec())
