"""How a host becomes a connection: resolved once, every address judged, a judged one dialed.

Owns name look-ups and dials, and the backends that make the HTTP client use them. Must never
dial an address that was not judged, nor let a name be resolved a second time between the two.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import cache
from ipaddress import ip_address
from typing import Any

import httpcore2

from safelight.connector.address import is_allowed_address
from safelight.connector.deadline import Deadline
from safelight.connector.streams import AsyncStream, SyncStream
from safelight.errors import BlockedURLError, FetchError

__all__ = ["AsyncGuard", "Network", "SYSTEM_NETWORK", "SyncGuard"]

# An answer of more addresses than this helps nobody; the first ones are tried.
_MAX_ADDRESSES = 8
# For an address behind which there are others: a host that is reached at all is reached sooner.
_PATIENCE_S = 1.0
# Of the stream reader: it lets twice this arrive before it stops reading.
_STREAM_LIMIT = 128 << 10


class Network:
    """Name look-ups and connections as the operating system does them.

    Everything here takes or returns numeric addresses, so whoever replaces a method (a recorder
    in a test, a resolver of one's own) cannot weaken the judgment, which happens in between.
    """

    def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses of `host`. May block.

        Raises:
            OSError: There are none.
        """
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(answer[4][0]) for answer in answers))

    def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        """Return a socket connected to `address`.

        Raises:
            OSError: It cannot be reached in time.
        """
        return socket.create_connection((address, port), timeout_s)

    async def connect_async(
        self, address: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return streams connected to `address`.

        Raises:
            OSError: It cannot be reached.
        """
        return await asyncio.open_connection(address, port, limit=_STREAM_LIMIT)

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context that verifies servers; made once, because loading it is slow."""
        return _ssl_context()


SYSTEM_NETWORK = Network()


@cache
def _ssl_context() -> ssl.SSLContext:
    return httpcore2.default_ssl_context()


def _judged(addresses: list[str], allow_private: bool) -> list[str]:
    """Return the addresses to dial, all of which are allowed.

    Every answer must be: a name that mixes public and private addresses is an attack on clients
    that try one after the other.
    """
    if not addresses:
        raise FetchError("host name has no address")
    if not all(is_allowed_address(address, allow_private=allow_private) for address in addresses):
        raise BlockedURLError("host has an address that is not allowed")
    return addresses[:_MAX_ADDRESSES]


def _look_up(network: Network, host: str, port: int) -> Future[list[str]]:
    """Resolve on a thread of its own.

    A look-up cannot be interrupted: one that hangs is left behind, and holds up neither the event
    loop nor the end of the process, as a thread of an executor would.
    """
    future: Future[list[str]] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(network.resolve(host, port))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            future.set_exception(error)

    threading.Thread(target=run, name="safelight-resolve", daemon=True).start()
    return future


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class AsyncGuard(httpcore2.AsyncNetworkBackend):
    """The asyncio backend. Timeouts are the caller's: a fetch runs under one deadline."""

    def __init__(self, network: Network, allow_private: bool) -> None:
        self._network = network
        self._allow_private = allow_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Any = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Resolve, judge, dial."""
        deadline: Deadline = timeout
        addresses = _judged(await self._resolve(host, port), self._allow_private)
        for share_s, address in _shares(addresses, deadline):
            try:
                async with asyncio.timeout(share_s):
                    return AsyncStream(*await self._network.connect_async(address, port))
            except (OSError, TimeoutError):
                continue
        raise FetchError("connection could not be opened")

    async def _resolve(self, host: str, port: int) -> list[str]:
        if _is_literal(host):
            return [host]
        try:
            return await asyncio.wrap_future(_look_up(self._network, host, port))
        except (OSError, UnicodeError):
            raise FetchError("host name could not be resolved") from None

    async def sleep(self, seconds: float) -> None:
        """Sleep; the client asks for it between its own retries, which are off."""
        await asyncio.sleep(seconds)


def _shares(addresses: list[str], deadline: Deadline) -> Iterator[tuple[float, str]]:
    """Each address with the seconds that it gets: the last one all that are left."""
    *others, last = addresses
    for address in others:
        yield min(deadline.remaining_s(), _PATIENCE_S), address
    yield deadline.remaining_s(), last


class SyncGuard(httpcore2.NetworkBackend):
    """The backend of blocking fetches. Every timeout it is handed is a `Deadline`."""

    def __init__(self, network: Network, allow_private: bool) -> None:
        self._network = network
        self._allow_private = allow_private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Any = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """Resolve, judge, dial."""
        deadline: Deadline = timeout
        addresses = _judged(self._resolve(host, port, deadline), self._allow_private)
        for share_s, address in _shares(addresses, deadline):
            if share_s <= 0:
                break
            try:
                connected = self._network.connect(address, port, share_s)
            except OSError:
                continue
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return SyncStream(connected)
        raise FetchError("connection could not be opened")

    def _resolve(self, host: str, port: int, deadline: Deadline) -> list[str]:
        if _is_literal(host):
            return [host]
        try:
            look_up = _look_up(self._network, host, port)
            return look_up.result(max(deadline.remaining_s(), 0.0))
        except (OSError, UnicodeError):
            raise FetchError("host name could not be resolved") from None
