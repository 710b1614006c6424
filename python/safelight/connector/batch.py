"""`Batch`: one batch call of a connector, and what its equal URLs share.

Owns the sharing: equal http(s) and file URLs are one fetch and one charge, equal ``data:`` URLs
one decode, and different ones are decoded and hashed together. Each URL has media of its own: it
is decoded once and copied for the others. Must never let one URL's fault touch another's result.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from safelight.background import hand_over
from safelight.budget import DownloadBudget
from safelight.connector.data_url import DataURL, check_size, scheme_of, split_data_url
from safelight.connector.refs import load_base64_refs, result_of
from safelight.errors import SafelightError
from safelight.pool import media_pool
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.media.base import MediaIO

__all__ = ["Batch", "batch_of", "in_batch"]

T = TypeVar("T")

# Of a text's middle and end. Two texts that agree in these and in their length are compared whole.
_SAMPLE = 48


class Batch:
    """The URLs of one call, for one decoder.

    A connector's default hook asks it for each URL that it is called with. A subclass that
    overrides the hook decides what that is.

    Args:
        connector: Whose call it is.
        urls: Its URLs, of any scheme.
        media_io: Its decoder.
        max_bytes: Cap on the payload of a ``data:`` URL.
        budget: What each ``data:`` URL is charged to, unless it fails.
    """

    def __init__(
        self,
        connector: object,
        urls: Sequence[str],
        media_io: MediaIO[Any],
        *,
        max_bytes: int,
        budget: DownloadBudget | None,
    ) -> None:
        self.connector = connector
        self.media_io = media_io
        self._data_urls = [url for url in urls if _is_data_url(url)]
        self._max_bytes = max_bytes
        self._budget = budget
        self._texts = _Texts()
        self._flights: dict[str, Future[Any]] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    def load(self, url: str, load: Callable[[], MediaRef[T]]) -> MediaRef[T]:
        """Return a ref to what is at `url`; `load` is called for the first of equal ones."""
        if _is_data_url(url):
            self._fly("data:", self._load_data)[0].result()
            return self._take(url) or load()
        flight, is_first = self._fly(url, load)
        with _own_exception(is_first):
            return self._own_media(flight.result(), is_first)

    async def load_async(self, url: str, load: Callable[[], Awaitable[MediaRef[T]]]) -> MediaRef[T]:
        """As `load`, with nothing of size on the event loop."""
        if _is_data_url(url):
            run_async = media_pool().run_async
            await _result(self._start("data:", lambda: run_async(self._load_data))[0])
            return self._take(url) or await load()
        flight, is_first = self._start(url, load)
        with _own_exception(is_first):
            return self._own_media(await _result(flight), is_first)

    def _own_media(self, ref: MediaRef[T], is_first: bool) -> MediaRef[T]:
        return ref if is_first else ref.map(self.media_io.copy)

    def _fly(self, key: str, load: Callable[[], T]) -> tuple[Future[T], bool]:
        """Return what the first call for `key` came to, and whether this is it."""
        mine: Future[T] = Future()
        flight = self._flights.setdefault(key, mine)
        if flight is mine:
            try:
                flight.set_result(load())
            except BaseException as error:  # noqa: BLE001 - raised again by whoever asks
                flight.set_exception(error)
        return flight, flight is mine

    def _start(self, key: str, load: Callable[[], Awaitable[T]]) -> tuple[Future[T], bool]:
        """As `_fly`, without waiting for it."""
        mine: Future[T] = Future()
        flight = self._flights.setdefault(key, mine)
        if flight is mine:
            # A task of its own: whoever asked first may be cancelled while others wait.
            task = asyncio.ensure_future(load())
            self._tasks.append(task)
            task.add_done_callback(partial(hand_over, outcome=flight))
        return flight, flight is mine

    def _load_data(self) -> None:
        """Load all ``data:`` URLs, which are charged in the order of the call."""
        for url in self._data_urls:
            text = self._texts.add(url)
            parts = result_of(self._admit, url)
            text.results.append(parts)
            if isinstance(parts, DataURL):
                text.parts = parts
        texts = [(text, text.parts) for text in self._texts.all if text.parts is not None]
        slices = [(parts.media_type, text.url[parts.start :]) for text, parts in texts]
        refs = load_base64_refs([self.media_io], slices)
        for (text, parts), (ref,) in zip(texts, refs, strict=True):
            is_taken = False
            for number, result in enumerate(text.results):
                if isinstance(result, DataURL):
                    text.results[number] = ref
                    if isinstance(ref, Exception):
                        self._refund(parts.nbytes)
                    elif is_taken:
                        text.results[number] = ref.map(self.media_io.copy)
                    is_taken = True

    def _admit(self, url: str) -> DataURL:
        parts = split_data_url(url)
        check_size(parts.nbytes, self._max_bytes)
        if self._budget is not None:
            self._budget.charge(parts.nbytes)
        return parts

    def _refund(self, nbytes: int) -> None:
        if self._budget is not None:
            self._budget.refund(nbytes)

    def _take(self, url: str) -> MediaRef[Any] | None:
        """Return the next ref of `url`; None where the call has no more of it."""
        text = self._texts.find(url)
        result = text.results.popleft() if text is not None and text.results else None
        if isinstance(result, Exception):
            raise result
        return result

    async def close(self) -> None:
        """End what nobody waits for any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.settle()

    def settle(self) -> None:
        """Give back the charges of what nobody has taken."""
        for text in self._texts.all:
            while text.results:
                if isinstance(text.results.pop(), MediaRef) and text.parts is not None:
                    self._refund(text.parts.nbytes)


class _Text:
    """One of the different ``data:`` URLs, and what each of its equals gets, in order."""

    __slots__ = ("parts", "results", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.parts: DataURL | None = None
        self.results: deque[Any] = deque()


class _Texts:
    """The different texts, in the order in which they came."""

    __slots__ = ("_alike", "_others", "all")

    def __init__(self) -> None:
        self.all: list[_Text] = []
        # Not by the text itself: hashing a str costs as much as hashing what it holds. Only where
        # others agree in the sample, so that nobody can have each text compared with all.
        self._alike: dict[tuple[int, str, str], _Text] = {}
        self._others: dict[str, _Text] = {}

    def find(self, url: str) -> _Text | None:
        text = self._alike.get(_sample(url))
        return text if text is None or text.url == url else self._others.get(url)

    def add(self, url: str) -> _Text:
        text = self.find(url)
        if text is None:
            text = _Text(url)
            self.all.append(text)
            if self._alike.setdefault(_sample(url), text) is not text:
                self._others[url] = text
        return text


def _is_data_url(url: object) -> bool:
    return isinstance(url, str) and scheme_of(url) == "data"


def _sample(url: str) -> tuple[int, str, str]:
    middle = len(url) // 2
    return (len(url), url[middle : middle + _SAMPLE], url[-_SAMPLE:])


async def _result(flight: Future[T]) -> T:
    return await asyncio.shield(asyncio.wrap_future(flight))


@contextmanager
def _own_exception(is_first: bool) -> Iterator[None]:
    """Raise a copy of an error that others get too."""
    try:
        yield
    except SafelightError as error:
        if is_first:
            raise
        raise copy.copy(error) from error


_current: ContextVar[Batch | None] = ContextVar("connector_batch", default=None)


@contextmanager
def in_batch(batch: Batch) -> Iterator[Batch]:
    """Let the hooks that are called in the ``with`` block, and tasks made there, share `batch`."""
    token = _current.set(batch)
    try:
        yield batch
    finally:
        _current.reset(token)


def batch_of(connector: object, url: object, media_io: object) -> Batch | None:
    """Return the batch that a call of `connector`'s hook belongs to."""
    batch = _current.get()
    if batch is None or batch.connector is not connector or batch.media_io is not media_io:
        return None
    # What is no text is refused one by one.
    return batch if isinstance(url, str) else None
