"""`Fetcher`: runs downloads on one event loop, over connections that are reused.

Owns the HTTP client and its pools: one per event loop and judgment of addresses. The client knows
no proxies, netrc, cookies or redirects of its own. HTTP/1.1 only: a refused download must end its
connection at once, and over HTTP/2 the client would let it flow.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from importlib import import_module
from typing import cast

import httpcore2

from safelight.background import is_background_thread
from safelight.connector.download import Download
from safelight.connector.limits import Limits, Pace
from safelight.connector.network import (
    SYSTEM_NETWORK,
    GuardedBackend,
    GuardedStream,
    Network,
    leave_to_parent,
)
from safelight.errors import FetchError, TransientFetchError
from safelight.pool import media_pool

__all__ = ["Fetcher", "get_fetcher", "warm_up"]

MAX_CONNECTIONS = 64
MAX_CONNECTIONS_PER_HOST = 16
_KEEPALIVE_S = 15.0
# A header probe of this much takes less than handing it over.
_MAX_CHECK_ON_LOOP = 64 << 10
_CHUNKS_A_STEP = 64
# A fetch starts and ends with some hundred microseconds of work.
_STARTS_A_STEP = 4

_CLIENT_ERRORS = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.UnsupportedProtocol,
)


def warm_up() -> None:
    """Load what the first fetch on a loop would load there: modules and certificates."""
    # A private module, so its absence is no fault: it costs the first fetch some time.
    with suppress(ImportError):
        import_module("anyio._backends._asyncio")
    SYSTEM_NETWORK.ssl_context()


class Fetcher:
    """Runs downloads on one event loop; `pace` is for the work with which a fetch starts."""

    def __init__(self, network: Network, allow_private: bool) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=network.ssl_context(),
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=_KEEPALIVE_S,
            network_backend=GuardedBackend(network, allow_private),
        )
        self._limits = Limits(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_HOST)
        self.pace = Pace(_STARTS_A_STEP)

    @property
    def active(self) -> int:
        """Attempts that are under way."""
        return self._limits.active

    async def fetch(self, download: Download, timeout_s: float, request: object) -> bytes | None:
        """Return the payload, or None where the stored one is still good.

        Args:
            download: What to fetch.
            timeout_s: Seconds for all of it: queue, hops, retries and body.
            request: Whose fetch it is; requests share the connections fairly.

        Raises:
            FetchError: It, or a subclass, as `Download` says.
            MediaError: A decoder refuses the payload by its first bytes.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(ends_at):
                while True:
                    try:
                        return await self._attempt(download, request)
                    except (FetchError, *_CLIENT_ERRORS) as error:
                        delay_s = download.retry(_fetch_error(error))
                    if loop.time() + delay_s >= ends_at:
                        raise TimeoutError
                    await asyncio.sleep(delay_s)
        except TimeoutError:
            download.abandon()
            raise TransientFetchError(f"fetch took longer than {timeout_s:g} s") from None
        except BaseException:
            download.abandon()
            raise

    async def _attempt(self, download: Download, request: object) -> bytes | None:
        while True:
            async with self._limits.slot(request, download.url.host):
                response = await self._pool.handle_async_request(_request(download))
                try:
                    if not download.receive_head(response.status, response.headers):
                        if download.is_not_modified:
                            return None
                        continue
                    cast(GuardedStream, response.extensions["network_stream"]).expect_body()
                    await _receive(download, cast(AsyncIterable[bytes], response.stream))
                    return download.finish()
                except httpcore2.RemoteProtocolError:
                    raise download.cut_short() from None
                finally:
                    await response.aclose()

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


def _request(download: Download) -> httpcore2.Request:
    url = download.url
    return httpcore2.Request(
        method="GET",
        url=httpcore2.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target
        ),
        headers=download.headers,
    )


async def _receive(download: Download, body: AsyncIterable[bytes]) -> None:
    count = 0
    async for chunk in body:
        if wanted := download.receive(chunk):
            if wanted <= _MAX_CHECK_ON_LOOP or is_background_thread():
                download.check()
            else:
                await media_pool().run_async(download.check)
        count += 1
        if not count % _CHUNKS_A_STEP:
            # What has arrived may be thousands of tiny chunks, which nothing else would part.
            await asyncio.sleep(0)


def _fetch_error(error: Exception) -> FetchError:
    """Return what an error of the client means, without its text, which can hold addresses."""
    if isinstance(error, FetchError):
        return error
    if isinstance(error, httpcore2.TimeoutException):
        return TransientFetchError("server did not answer in time")
    if isinstance(error, httpcore2.NetworkError):
        return TransientFetchError("connection failed")
    return TransientFetchError("server's answer is not HTTP")


_Key = tuple[asyncio.AbstractEventLoop, Network, bool]

# The generator is what the loop closes when it shuts down; see `_lifetime`.
_fetchers: dict[_Key, tuple[Fetcher, AsyncIterator[None]]] = {}
# What a child of a fork has of its parent: never used, never finalized.
_of_parent: list[object] = []


async def get_fetcher(network: Network, allow_private: bool) -> Fetcher:
    """Return the fetcher of the running loop; it is closed when the loop shuts down."""
    key = (asyncio.get_running_loop(), network, allow_private)
    if key not in _fetchers:
        for other in [other for other in list(_fetchers) if other[0].is_closed()]:
            _fetchers.pop(other, None)
        fetcher = Fetcher(network, allow_private)
        lifetime = _lifetime(key, fetcher)
        _fetchers[key] = (fetcher, lifetime)
        await anext(lifetime)
    return _fetchers[key][0]


async def _lifetime(key: _Key, fetcher: Fetcher) -> AsyncIterator[None]:
    """Close `fetcher` when its loop shuts its async generators down: the only hook it has."""
    try:
        yield
    finally:
        _fetchers.pop(key, None)
        await fetcher.close()


def _start_over_after_fork() -> None:
    # Two processes must not read from one connection.
    global _fetchers  # noqa: PLW0603 - what the parent has is not to be finalized here
    _of_parent.append(_fetchers)
    _fetchers = {}
    leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over_after_fork)
