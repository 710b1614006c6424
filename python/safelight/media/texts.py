"""Base64 texts that decoders are asked for one by one, and decode together.

Owns what the calls of one batch share. A decoder that overrides `MediaIO.load_base64_ref` is asked
for each text as ever; the default finds here what has been made for all of them at its first call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from safelight._safelight import decode_base64
from safelight.errors import SafelightError
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.media.base import MediaIO

__all__ = ["base64_batch", "load_text"]


class _Batch:
    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        # By identity: the batch keeps the texts, and comparing or hashing them costs as much as
        # decoding them.
        self._numbers = {id(text): number for number, text in enumerate(texts)}
        self._payloads: list[bytes | SafelightError] | None = None
        self._refs: dict[int, list[MediaRef[Any] | Exception]] = {}

    def load(self, media_io: MediaIO[Any], text: str) -> MediaRef[Any] | Exception | None:
        number = self._numbers.get(id(text))
        if number is None:
            return None
        if self._payloads is None:
            self._payloads = [_decode(each) for each in self._texts]
        refs = self._refs.get(id(media_io))
        if refs is None:
            good = [payload for payload in self._payloads if isinstance(payload, bytes)]
            made = iter(media_io.load_bytes_refs(good))
            refs = self._refs[id(media_io)] = [
                next(made) if isinstance(payload, bytes) else payload for payload in self._payloads
            ]
        return refs[number]


_current: ContextVar[_Batch | None] = ContextVar("base64_batch", default=None)


@contextmanager
def base64_batch(texts: Sequence[str]) -> Iterator[None]:
    """Decode `texts` together: `load_base64_ref` is called for each, in the ``with`` block."""
    token = _current.set(_Batch(texts))
    try:
        yield
    finally:
        _current.reset(token)


def load_text(media_io: MediaIO[Any], text: str) -> MediaRef[Any]:
    """Return the ref of `text`, which may have been made with others'.

    Raises:
        DecodeError: `text` is not strict base64.
        MediaError: As ``media_io.load_bytes_ref``.
    """
    batch = _current.get()
    ref = None if batch is None else batch.load(media_io, text)
    if ref is None:
        return media_io.load_bytes_ref(decode_base64(text))
    if isinstance(ref, Exception):
        raise ref
    return ref


def _decode(text: str) -> bytes | SafelightError:
    try:
        return decode_base64(text)
    except SafelightError as error:
        return error
