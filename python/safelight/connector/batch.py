"""`Batch`: one batch call of a connector, and what its equal URLs share.

Owns the sharing: equal http(s) and file URLs are one fetch and one charge, equal ``data:`` URLs
one decode, and different ones are decoded and hashed together. Each URL has media of its own: it
is decoded once and copied for the others. Must never let one URL's fault touch another's result.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import is_
from typing import TYPE_CHECKING, Any, TypeVar

from safelight.connector.data_url import scheme_of
from safelight.connector.refs import raise_or_return, result_of
from safelight.errors import SafelightError
from safelight.pool import media_pool
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.media.base import MediaIO

__all__ = ["Batch", "batch_of", "in_batch"]

T = TypeVar("T")


class Batch:
    """The URLs of one call, for one decoder.

    A connector's default hook asks it for each URL that it is called with. A subclass that
    overrides the hook decides what that is.

    Args:
        connector: Whose call it is.
        urls: Its URLs, of any scheme.
        media_io: Its decoder.
        load_data: Brings refs to ``data:`` URLs, which it charges in their order.
        refund: Gives back the charge of a ``data:`` URL.
        loop: Where it is awaited; None where it is not.
    """

    def __init__(
        self,
        connector: object,
        urls: Sequence[str],
        media_io: MediaIO[Any],
        *,
        load_data: Callable[[Sequence[str]], list[list[MediaRef[Any]] | Exception]],
        refund: Callable[[str], None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.caller = (connector, media_io, loop)
        self._media_io = media_io
        # What has the same identity is the same text: hashing one costs as much as decoding it.
        self._data_urls = [url for url in urls if _is_data_url(url)]
        self._data: dict[int, deque[MediaRef[Any] | Exception]] = defaultdict(deque)
        self._is_loaded = False
        self._load_data = load_data
        self._refund = refund
        self._results: dict[str, MediaRef[Any] | Exception] = {}
        self._tasks: dict[str, asyncio.Future[Any]] = {}

    def load(self, url: str, load: Callable[[], MediaRef[T]]) -> MediaRef[T]:
        """Return a ref to what is at `url`; `load` is called for the first of equal ones."""
        if _is_data_url(url):
            self._load_all_data()
            return self._take(url) or load()
        if is_first := url not in self._results:
            self._results[url] = result_of(load)
        return self._share(self._results[url], is_first)

    async def load_async(self, url: str, load: Callable[[], Awaitable[MediaRef[T]]]) -> MediaRef[T]:
        """As `load`, with nothing of size on the event loop."""
        if _is_data_url(url):
            await self._join("data:", lambda: media_pool().run_async(self._load_all_data))
            return self._take(url) or await load()
        is_first = url not in self._tasks
        try:
            result: MediaRef[T] | Exception = await self._join(url, load)
        except Exception as error:  # noqa: BLE001 - raised again, to each caller as its own
            result = error
        return self._share(result, is_first)

    async def _join(self, key: str, load: Callable[[], Awaitable[T]]) -> T:
        if key not in self._tasks:
            # A task of its own: whoever asked first may be cancelled while others wait.
            self._tasks[key] = asyncio.ensure_future(load())
        result: T = await asyncio.shield(self._tasks[key])
        return result

    def _share(self, result: MediaRef[T] | Exception, is_first: bool) -> MediaRef[T]:
        if isinstance(result, SafelightError) and not is_first:
            raise copy.copy(result) from result
        ref = raise_or_return(result)
        return ref if is_first else ref.map(self._media_io.copy)

    def _load_all_data(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        for url, result in zip(self._data_urls, self._load_data(self._data_urls), strict=True):
            self._data[id(url)].append(result if isinstance(result, Exception) else result[0])

    def _take(self, url: str) -> MediaRef[Any] | None:
        """Return the next ref of `url`; None where the call has no more of it."""
        results = self._data.get(id(url))
        return raise_or_return(results.popleft()) if results else None

    async def close(self) -> None:
        """End what nobody waits for any more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self.settle()

    def settle(self) -> None:
        """Give back the charges of what nobody has taken."""
        for url in self._data_urls:
            if isinstance(result_of(self._take, url), MediaRef):
                self._refund(url)


def _is_data_url(url: object) -> bool:
    return isinstance(url, str) and scheme_of(url) == "data"


_current: ContextVar[Batch | None] = ContextVar("connector_batch", default=None)


@contextmanager
def in_batch(batch: Batch) -> Iterator[Batch]:
    """Let the hooks that are called in the ``with`` block, and tasks made there, share `batch`."""
    token = _current.set(batch)
    try:
        yield batch
    finally:
        _current.reset(token)


def batch_of(
    connector: object, url: object, media_io: object, loop: asyncio.AbstractEventLoop | None
) -> Batch | None:
    """Return the batch that a call of `connector`'s hook belongs to."""
    batch = _current.get()
    # What is no text is refused one by one.
    if batch is None or not isinstance(url, str):
        return None
    return batch if all(map(is_, batch.caller, (connector, media_io, loop))) else None
