"""The drivers of a `Download`, blocking and on asyncio, over connections that are reused.

Owns the HTTP client and its pools: one per event loop and one for all threads, for each judgment
of addresses. The client knows no proxies, netrc, cookies or redirects of its own. HTTP/1.1 only:
a refused download must end its connection at once, and over HTTP/2 the client would let it flow.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from importlib import import_module
from typing import cast

import httpcore2

from safelight.connector.deadline import Deadline
from safelight.connector.download import Download
from safelight.connector.network import AsyncGuard, Network, SyncGuard
from safelight.connector.off_loop import off_loop
from safelight.connector.streams import AsyncStream, SyncStream, leave_to_parent
from safelight.connector.turns import Pace, Turns
from safelight.errors import FetchError

__all__ = [
    "AsyncFetcher",
    "SyncFetcher",
    "get_async_fetcher",
    "get_sync_fetcher",
    "load_for_asyncio",
]

MAX_CONNECTIONS = 64
MAX_CONNECTIONS_PER_HOST = 16
_KEEPALIVE_S = 15.0
# A header probe of this much takes less than handing it over.
_MAX_CHECK_ON_LOOP = 64 << 10
_CHUNKS_A_STEP = 64
# A fetch begins and ends with some hundred microseconds of work.
_STARTS_A_STEP = 4

_CLIENT_ERRORS = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.UnsupportedProtocol,
)


def load_for_asyncio() -> None:
    """Import what the client would import on the event loop, at its first request there."""
    # A private module, so its absence is no fault: it costs the first fetch some time.
    with suppress(ImportError):
        import_module("anyio._backends._asyncio")


def _request(download: Download, deadline: Deadline) -> httpcore2.Request:
    url = download.url
    return httpcore2.Request(
        method="GET",
        url=httpcore2.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target
        ),
        headers=download.headers,
        # The client hands these to the backend unread, except "pool", which it waits for.
        extensions={
            "timeout": {
                "connect": deadline,
                "read": deadline,
                "write": deadline,
                "pool": max(deadline.remaining_s(), 0.0),
            }
        },
    )


def _fetch_error(error: Exception) -> FetchError:
    """Return what an error of the client means, without its text, which can hold addresses."""
    if isinstance(error, FetchError):
        return error
    if isinstance(error, httpcore2.TimeoutException):
        return FetchError("server did not answer in time")
    if isinstance(error, httpcore2.NetworkError):
        return FetchError("connection failed")
    return FetchError("server's answer is not HTTP")


def _cut_short(download: Download) -> FetchError:
    return download.interrupted(FetchError("connection ended early"), by_peer=True)


def _too_late(deadline: Deadline) -> FetchError:
    return FetchError(f"fetch took longer than {deadline.timeout_s:g} s")


class SyncFetcher:
    """Runs downloads on the calling thread. Thread-safe."""

    def __init__(self, network: Network, allow_private: bool) -> None:
        self._network = network
        self._allow_private = allow_private
        self._pool: httpcore2.ConnectionPool | None = None
        self._lock = threading.Lock()

    def _get_pool(self) -> httpcore2.ConnectionPool:
        with self._lock:
            if self._pool is None:
                self._pool = httpcore2.ConnectionPool(
                    ssl_context=self._network.ssl_context(),
                    max_connections=MAX_CONNECTIONS,
                    keepalive_expiry=_KEEPALIVE_S,
                    network_backend=SyncGuard(self._network, self._allow_private),
                )
            return self._pool

    def fetch(self, download: Download, deadline: Deadline) -> bytes | None:
        """Return the payload, or None where the stored one is still good.

        Raises:
            FetchError: It, or a subclass, as `Download` says.
            MediaError: A decoder refuses the payload by its first bytes.
        """
        pool = self._get_pool()
        try:
            while True:
                try:
                    return self._attempt(pool, download, deadline)
                except (FetchError, *_CLIENT_ERRORS) as error:
                    if deadline.remaining_s() <= 0:
                        raise _too_late(deadline) from None
                    delay_s = download.retry(_fetch_error(error))
                if delay_s >= deadline.remaining_s():
                    raise _too_late(deadline)
                threading.Event().wait(delay_s)
        except BaseException:
            download.abandon()
            raise

    def _attempt(
        self, pool: httpcore2.ConnectionPool, download: Download, deadline: Deadline
    ) -> bytes | None:
        while True:
            response = pool.handle_request(_request(download, deadline))
            try:
                if not download.begin(response.status, response.headers):
                    if download.is_not_modified:
                        return None
                    continue
                cast(SyncStream, response.extensions["network_stream"]).head.begin_body()
                for chunk in cast(Iterable[bytes], response.stream):
                    if download.feed(chunk):
                        download.check()
                return download.finish()
            except httpcore2.RemoteProtocolError:
                raise _cut_short(download) from None
            finally:
                response.close()

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


class AsyncFetcher:
    """Runs downloads on one event loop, in turns."""

    def __init__(self, network: Network, allow_private: bool) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=network.ssl_context(),
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=_KEEPALIVE_S,
            network_backend=AsyncGuard(network, allow_private),
        )
        self._turns = Turns(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_HOST)
        self._pace = Pace(_STARTS_A_STEP)

    @property
    def active(self) -> int:
        """Attempts that are under way."""
        return self._turns.active

    async def begin(self) -> None:
        """Wait until the loop has room for the work with which a fetch begins."""
        await self._pace.keep()

    async def fetch(self, download: Download, deadline: Deadline, owner: object) -> bytes | None:
        """Return the payload, or None where the stored one is still good.

        `owner` is whose turns it takes: the request.

        Raises:
            FetchError: It, or a subclass, as `Download` says.
            MediaError: A decoder refuses the payload by its first bytes.
        """
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                while True:
                    try:
                        return await self._attempt(download, deadline, owner)
                    except (FetchError, *_CLIENT_ERRORS) as error:
                        delay_s = download.retry(_fetch_error(error))
                    if delay_s >= deadline.remaining_s():
                        raise _too_late(deadline)
                    await asyncio.sleep(delay_s)
        except TimeoutError:
            download.abandon()
            raise _too_late(deadline) from None
        except BaseException:
            download.abandon()
            raise

    async def _attempt(self, download: Download, deadline: Deadline, owner: object) -> bytes | None:
        while True:
            async with self._turns.turn(owner, download.url.host):
                response = await self._pool.handle_async_request(_request(download, deadline))
                try:
                    if not download.begin(response.status, response.headers):
                        if download.is_not_modified:
                            return None
                        continue
                    cast(AsyncStream, response.extensions["network_stream"]).head.begin_body()
                    await _receive(download, cast(AsyncIterable[bytes], response.stream))
                    return download.finish()
                except httpcore2.RemoteProtocolError:
                    raise _cut_short(download) from None
                finally:
                    await response.aclose()

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


async def _receive(download: Download, body: AsyncIterable[bytes]) -> None:
    count = 0
    async for chunk in body:
        if wanted := download.feed(chunk):
            if wanted <= _MAX_CHECK_ON_LOOP:
                download.check()
            else:
                await off_loop(download.check)
        count += 1
        if not count % _CHUNKS_A_STEP:
            # What has arrived may be thousands of tiny chunks, which nothing else would part.
            await asyncio.sleep(0)


_Key = tuple[Network, bool]


class _Shared:
    """The fetchers of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sync: dict[_Key, SyncFetcher] = {}
        # The generator is what the loop closes when it shuts down; see `_lifetime`.
        self.by_loop: dict[
            asyncio.AbstractEventLoop, dict[_Key, tuple[AsyncFetcher, AsyncIterator[None]]]
        ] = {}

    def close(self) -> None:
        """Close what threads share; a loop closes its own."""
        for fetcher in list(self.sync.values()):
            fetcher.close()


_shared = _Shared()
# What a child of a fork has of its parent: never used, never finalized.
_of_parent: list[_Shared] = []


def get_sync_fetcher(network: Network, allow_private: bool) -> SyncFetcher:
    """Return the fetcher that all threads share."""
    key = (network, allow_private)
    with _shared.lock:
        if key not in _shared.sync:
            _shared.sync[key] = SyncFetcher(network, allow_private)
        return _shared.sync[key]


async def get_async_fetcher(network: Network, allow_private: bool) -> AsyncFetcher:
    """Return the fetcher of the running loop; it is closed when the loop shuts down."""
    loop = asyncio.get_running_loop()
    key = (network, allow_private)
    with _shared.lock:
        for other in [other for other in _shared.by_loop if other.is_closed()]:
            del _shared.by_loop[other]
        known = _shared.by_loop.setdefault(loop, {})
    if key not in known:
        fetcher = AsyncFetcher(network, allow_private)
        lifetime = _lifetime(loop, fetcher)
        known[key] = (fetcher, lifetime)
        await anext(lifetime)
    return known[key][0]


async def _lifetime(loop: asyncio.AbstractEventLoop, fetcher: AsyncFetcher) -> AsyncIterator[None]:
    """Close `fetcher` when `loop` shuts its async generators down: the only hook it has."""
    try:
        yield
    finally:
        with _shared.lock:
            _shared.by_loop.pop(loop, None)
        await fetcher.close()


def _begin_anew_after_fork() -> None:
    # Two processes must not read from one connection.
    global _shared  # noqa: PLW0603 - its lock may be held by a thread that is not here
    _of_parent.append(_shared)
    _shared = _Shared()
    leave_to_parent()


@atexit.register
def _close_at_exit() -> None:
    _shared.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew_after_fork)
