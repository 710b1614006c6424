"""How a host becomes a connection: resolved once, every address judged, a judged one dialed.

Owns name look-ups and the backend that makes the HTTP client use them. Must never dial an address
that was not judged, nor let a name be resolved a second time between the two.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Any
from weakref import WeakSet

import httpcore2

from safelight.connector.address import is_allowed_address
from safelight.errors import BlockedURLError, FetchRefusedError, TransientFetchError

__all__ = ["GuardedBackend", "GuardedStream", "Network", "SYSTEM_NETWORK", "leave_to_parent"]

# An answer of more addresses than this helps nobody; the first ones are tried.
_MAX_ADDRESSES = 8
# For an address behind which there are others: a host that is reached at all is reached sooner.
_PATIENCE_S = 1.0
# Heads are small: read in small parts, and not without end.
_HEAD_READ = 4 << 10
_MAX_HEAD = 256 << 10
# What an event loop reads from a socket at once.
_BODY_READ = 256 << 10


class Network:
    """Name look-ups and connections as the operating system does them.

    Everything here takes or returns numeric addresses, so whoever replaces a method (a recorder
    in a test, a resolver of one's own) cannot weaken the judgment, which happens in between.
    """

    def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses of `host`. May block; runs on a thread of its own.

        Raises:
            OSError: There are none.
        """
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(answer[4][0]) for answer in answers))

    async def connect(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        """Return a stream connected to `address`.

        Raises:
            OSError: It cannot be reached.
            httpcore2.ConnectError: As `OSError`.
        """
        return await httpcore2.AnyIOBackend().connect_tcp(address, port)

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context that verifies servers; made once, because loading it is slow."""
        return _ssl_context()


_ssl_context = cache(httpcore2.default_ssl_context)
SYSTEM_NETWORK = Network()


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves, judges, dials. Timeouts are the caller's: a fetch runs under one deadline."""

    def __init__(self, network: Network, allow_private: bool) -> None:
        self._network = network
        self._allow_private = allow_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address of `host` that answers; all of them must be allowed.

        Raises:
            BlockedURLError: An address is not allowed.
            TransientFetchError: There is no address, or none that answers.
        """
        addresses = self._judge(await self._resolve(host, port))
        for address in addresses:
            patience_s = None if address is addresses[-1] else _PATIENCE_S
            with suppress(OSError, httpcore2.ConnectError, TimeoutError):
                async with asyncio.timeout(patience_s):
                    return GuardedStream(await self._network.connect(address, port))
        raise TransientFetchError("connection could not be opened")

    async def _resolve(self, host: str, port: int) -> list[str]:
        with suppress(ValueError):
            return [str(ip_address(host))]
        try:
            return await asyncio.wrap_future(_look_up(self._network, host, port))
        except (OSError, UnicodeError):
            raise TransientFetchError("host name could not be resolved") from None

    def _judge(self, addresses: list[str]) -> list[str]:
        """Return the addresses to dial, all of which are allowed.

        Every answer must be: a name that mixes public and private addresses is an attack on
        clients that try one after the other.
        """
        if not addresses:
            raise TransientFetchError("host name has no address")
        for address in addresses:
            if not is_allowed_address(address, allow_private=self._allow_private):
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


class GuardedStream(httpcore2.AsyncNetworkStream):
    """A connection of the client's backend whose heads are bounded.

    The client bounds one head, but not how many interim answers come before the final one, and
    parses all that one read brings without a pause. `expect_body` is to be told when a body comes.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        # Kept, because the backend asks the system for all that it knows to answer.
        self._socket: socket.socket | None = stream.get_extra_info("socket")
        self._head_left: int | None = _MAX_HEAD
        _streams.add(self)

    def expect_body(self) -> None:
        """Expect the body of an answer: its own limits hold from here to the next request."""
        self._head_left = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what has arrived; empty at the end.

        Of a body that may be more than `max_bytes`: what the loop has read at once comes at once.
        """
        if self._head_left is None:
            return await self._stream.read(max(max_bytes, _BODY_READ), timeout)
        data = await self._stream.read(min(max_bytes, _HEAD_READ), timeout)
        self._head_left -= len(data)
        if self._head_left < 0:
            raise httpcore2.ReadError("endless head")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send `buffer`, a part of a request."""
        self._head_left = _MAX_HEAD
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """End the connection at once: the backend aborts what a peer does not let it close."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Speak TLS from here, with a server that proves to be `server_hostname`.

        Raises:
            FetchRefusedError: Its certificate is not valid for that name.
            TransientFetchError: The handshake failed otherwise.
        """
        try:
            self._stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException as error:
            # Also where the fetch is cancelled: nobody else has the connection yet.
            await self.aclose()
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise FetchRefusedError("server's certificate is not valid for it") from None
            if isinstance(error, (httpcore2.ConnectError, OSError, ValueError)):
                raise TransientFetchError("TLS handshake failed") from None
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        """Tell the client what it asks about the connection."""
        if info == "is_readable" and self._socket is not None:
            # Asked of idle connections only: what has arrived there is the server's goodbye.
            poll = select.poll()
            poll.register(self._socket.fileno(), select.POLLIN)
            return bool(poll.poll(0))
        return self._stream.get_extra_info(info)


_streams: WeakSet[GuardedStream] = WeakSet()


def leave_to_parent() -> None:
    """Let go of every open connection in the child of a fork, without a word to the peer.

    As long as a child holds a connection too, it does not end when the parent ends it. The
    descriptors stay valid, so that whoever still has one closes nothing of somebody else's.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in list(_streams):
        if stream._socket is not None and stream._socket.fileno() >= 0:
            os.dup2(nothing, stream._socket.fileno(), inheritable=False)
    os.close(nothing)
