"""Many ``data:`` URLs at once.

Owns what they share: equal texts are decoded once, keys are derived together. Must never let one
URL's fault touch another's outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from safelight._safelight import decode_base64
from safelight.budget import DownloadBudget
from safelight.connector.data_url import DataURL, check_size, split_data_url
from safelight.errors import SafelightError
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.media.base import MediaIO

__all__ = ["load_data_urls"]

T = TypeVar("T")

# Of a text's middle and end. Two texts that agree in these and in their length are compared whole.
_SAMPLE = 48


class _Text:
    """One of the different texts, and the numbers of the URLs that are it."""

    __slots__ = ("numbers", "parts", "url")

    def __init__(self, url: str, parts: DataURL) -> None:
        self.url = url
        self.parts = parts
        self.numbers: list[int] = []


class _Texts:
    """The different texts, in the order in which they came."""

    __slots__ = ("_alike", "_others", "all")

    def __init__(self) -> None:
        self.all: list[_Text] = []
        # Not by the text itself: hashing a str costs as much as hashing what it holds. Only where
        # others agree in the sample, so that nobody can have each text compared with all.
        self._alike: dict[tuple[int, str, str], _Text] = {}
        self._others: dict[str, _Text] = {}

    def add(self, number: int, url: str, parts: DataURL) -> None:
        middle = len(url) // 2
        sample = (len(url), url[middle : middle + _SAMPLE], url[-_SAMPLE:])
        text = self._alike.get(sample)
        if text is not None and text.url != url:
            text = self._others.get(url)
        if text is None:
            text = _Text(url, parts)
            if self._alike.setdefault(sample, text) is not text:
                self._others[url] = text
            self.all.append(text)
        text.numbers.append(number)


def load_data_urls(
    urls: Iterable[tuple[int, str]],
    media_io: MediaIO[T],
    *,
    max_bytes: int,
    budget: DownloadBudget | None,
) -> dict[int, MediaRef[T] | Exception]:
    """Return a ref for each ``data:`` URL, or what was wrong with it, by its number.

    Equal URLs share a payload and a decode. Each is charged to `budget` unless it fails.
    """
    outcomes: dict[int, MediaRef[T] | Exception] = {}
    texts = _Texts()
    for number, url in urls:
        try:
            parts = split_data_url(url)
            check_size(parts.nbytes, max_bytes)
            if budget is not None:
                budget.charge(parts.nbytes)
            texts.add(number, url, parts)
        except SafelightError as error:
            outcomes[number] = error
    for text, ref in zip(texts.all, _load(texts.all, media_io), strict=True):
        for number in text.numbers:
            outcomes[number] = ref.fork() if isinstance(ref, MediaRef) else ref
        if budget is not None and not isinstance(ref, MediaRef):
            budget.refund(text.parts.nbytes * len(text.numbers))
    return outcomes


def _load(texts: list[_Text], media_io: MediaIO[T]) -> list[MediaRef[T] | Exception]:
    payloads = [_payload(text) for text in texts]
    refs = iter(media_io.load_bytes_refs([data for data in payloads if isinstance(data, bytes)]))
    return [next(refs) if isinstance(data, bytes) else data for data in payloads]


def _payload(text: _Text) -> bytes | SafelightError:
    try:
        return decode_base64(text.url, text.parts.start)
    except SafelightError as error:
        return error
