"""Payloads to refs, by decoders that may be anybody's.

Owns whose fault it is what a decoder raises. Must never put a foreign exception's text into one of
ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from safelight._safelight import decode_base64
from safelight.budget import DownloadBudget
from safelight.connector.data_url import split_data_url
from safelight.errors import MediaError, SafelightError
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.media.base import MediaIO

__all__ = ["decoder_errors", "load_data_refs", "load_refs", "raise_or_return", "result_of"]

T = TypeVar("T")

# Of a text's middle and end. Two texts that agree in these and in their length are compared whole.
_SAMPLE = 48


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
    """Return a ref to `payload` by each decoder; raise what the first that refuses it raises."""
    with decoder_errors():
        return [media_io.load_bytes_ref(payload) for media_io in media_ios]


def load_data_refs(
    media_ios: Sequence[MediaIO[Any]],
    urls: Sequence[str],
    max_bytes: int,
    budget: DownloadBudget,
) -> list[list[MediaRef[Any]] | Exception]:
    """Return for each ``data:`` URL a ref by each decoder, or why there is none.

    All are charged in their order, and those that fail refunded. Equal ones are one decode.
    """
    samples: dict[tuple[int, str, str], str] = {}
    texts: dict[object, tuple[str, str]] = {}

    def admit(url: str) -> tuple[object, int]:
        parts = split_data_url(url, max_bytes)
        # Not the text itself: hashing a str costs as much as hashing what it holds. Only where
        # others agree in the sample, so that nobody can have each text compared with all.
        middle = len(url) // 2
        sample = (len(url), url[middle : middle + _SAMPLE], url[-_SAMPLE:])
        key = sample if samples.setdefault(sample, url) == url else url
        text = texts.get(key) or (parts.media_type, url[parts.start :])
        budget.charge(parts.nbytes)
        texts[key] = text
        return key, parts.nbytes

    admitted = [result_of(admit, url) for url in urls]
    loaded = dict(zip(texts, _load_base64_refs(media_ios, list(texts.values())), strict=True))
    shared: set[object] = set()

    def refs_of(key: object, nbytes: int) -> list[MediaRef[Any]]:
        refs = loaded[key]
        if isinstance(refs, Exception):
            budget.refund(nbytes)
            raise refs
        if key not in shared:
            shared.add(key)
            return refs
        return [ref.map(media_io.copy) for ref, media_io in zip(refs, media_ios, strict=True)]

    return [each if isinstance(each, Exception) else result_of(refs_of, *each) for each in admitted]


def _load_base64_refs(
    media_ios: Sequence[MediaIO[Any]], texts: Sequence[tuple[str, str]]
) -> list[list[MediaRef[Any]] | Exception]:
    """Decode texts once for all decoders, unless they override that, and hash them together."""
    from safelight.media.plain import is_plain

    payloads: list[bytes | Exception] = []
    columns: list[list[MediaRef[Any] | Exception]] = []
    for media_io in media_ios:
        if not (is_plain(media_io.load_base64_ref) and is_plain(media_io.load_base64)):
            columns.append([result_of(media_io.load_base64_ref, *text) for text in texts])
            continue
        payloads = payloads or [result_of(decode_base64, text) for _, text in texts]
        good = [payload for payload in payloads if isinstance(payload, bytes)]
        made = result_of(media_io.load_bytes_refs, good)
        refs = iter([made] * len(good) if isinstance(made, Exception) else made)
        columns.append([next(refs) if isinstance(each, bytes) else each for each in payloads])

    def judge(number: int) -> list[MediaRef[Any]]:
        with decoder_errors():
            return [raise_or_return(column[number]) for column in columns]

    return [result_of(judge, number) for number in range(len(texts))]


def result_of(call: Callable[..., T], *args: Any) -> T | Exception:
    """Return what `call` returns, or the exception that it raises."""
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - handed on in the place of a result
        return error


def raise_or_return(result: T | Exception) -> T:
    """Undo `result_of`."""
    if isinstance(result, Exception):
        raise result
    return result
