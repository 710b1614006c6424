"""Payloads to refs, by decoders that may be anybody's.

Owns whose fault it is what a decoder raises. Must never put a foreign exception's text into one of
ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from safelight.errors import MediaError, SafelightError
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.media.base import MediaIO

__all__ = ["decoder_errors", "load_base64_refs", "load_refs", "result_of"]

T = TypeVar("T")


@contextmanager
def decoder_errors() -> Iterator[None]:
    """Make what a decoder raises in the ``with`` block ours.

    ValueError and OSError are what libraries say of bytes. MemoryError, RuntimeError and TypeError
    are the server's own and pass; anything else is a SafelightError.
    """
    try:
        yield
    except (SafelightError, MemoryError, RuntimeError, TypeError):
        raise
    except (ValueError, OSError) as error:
        raise MediaError("media could not be loaded") from error
    except Exception as error:
        raise SafelightError(f"media could not be loaded ({type(error).__name__})") from error


def load_refs(media_ios: Sequence[MediaIO[Any]], payload: bytes) -> list[MediaRef[Any]]:
    """Return a ref to `payload` by each decoder.

    Raises:
        MediaError: One of them refuses it.
    """
    with decoder_errors():
        return [media_io.load_bytes_ref(payload) for media_io in media_ios]


def load_base64_refs(
    media_ios: Sequence[MediaIO[Any]], texts: Sequence[tuple[str, str]]
) -> list[list[MediaRef[Any] | Exception]]:
    """Return for each media type and base64 text a ref by each decoder, or why there is none.

    Texts are decoded once for all decoders, and hashed together, by decoders that read no base64
    of their own.
    """
    from safelight.media.texts import base64_batch

    def load(media_io: MediaIO[Any], media_type: str, text: str) -> MediaRef[Any]:
        with decoder_errors():
            return media_io.load_base64_ref(media_type, text)

    with base64_batch([text for _, text in texts]):
        return [
            [result_of(load, media_io, media_type, text) for media_io in media_ios]
            for media_type, text in texts
        ]


def result_of(call: Callable[..., T], *args: Any) -> T | Exception:
    """Return what `call` returns, or the exception that it raises."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - handed on in the place of a result
        return error
