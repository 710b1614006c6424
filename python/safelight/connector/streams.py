"""Connections as the HTTP client reads and writes them, on an event loop and blocking.

Owns sockets once they are open: deadlines, how much a head may bring, TLS, and an end that waits
for nobody. Must never open a connection.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import httpcore2

from safelight.connector.deadline import Deadline
from safelight.errors import FetchError, FetchRefusedError

__all__ = ["AsyncStream", "HeadLimit", "SyncStream", "leave_to_parent"]

# Heads are small: read in small parts, and not without end.
_HEAD_READ = 4 << 10
_MAX_HEAD = 256 << 10


class HeadLimit:
    """How much may be read before the body of an answer begins.

    The client bounds one head, but not how many interim answers come before the final one, and
    parses all that one read brings without a pause.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: int | None = _MAX_HEAD

    def begin_head(self) -> None:
        """Expect a head: a request has been sent."""
        self._left = _MAX_HEAD

    def begin_body(self) -> None:
        """Expect the body: its own limits hold from here."""
        self._left = None

    def allow(self, max_bytes: int) -> int:
        """Return how many bytes the next read may bring."""
        return max_bytes if self._left is None else min(max_bytes, _HEAD_READ)

    def count(self, nbytes: int) -> None:
        """Take note of what a read has brought.

        Raises:
            httpcore2.ReadError: Too much for a head.
        """
        if self._left is not None:
            self._left -= nbytes
            if self._left < 0:
                raise httpcore2.ReadError("endless head")


class AsyncStream(httpcore2.AsyncNetworkStream):
    """A connection on an event loop. `head` is to be told when the body of an answer begins."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = HeadLimit()
        self._reader = reader
        self._writer = writer
        _streams.add(self)

    def fileno(self) -> int:
        """The descriptor, or -1 once the connection has ended."""
        connected: socket.socket | None = self._writer.get_extra_info("socket")
        return -1 if connected is None else connected.fileno()

    async def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        """Return what has arrived, at most `max_bytes`; empty at the end."""
        # Bytes that are there already are returned without a pause: a server that sends faster
        # than they are parsed (endless interim answers, say) would keep the loop to itself.
        await asyncio.sleep(0)
        try:
            data = await self._reader.read(self.head.allow(max_bytes))
        except OSError as error:
            raise httpcore2.ReadError from error
        self.head.count(len(data))
        return data

    async def write(self, buffer: bytes, timeout: Any = None) -> None:
        """Send `buffer`: the begin of a request."""
        self.head.begin_head()
        try:
            self._writer.write(buffer)
            await self._writer.drain()
        except OSError as error:
            raise httpcore2.WriteError from error

    async def aclose(self) -> None:
        """End the connection at once."""
        # Abort rather than close: a peer that does not read must not hold the connection open,
        # and the rest of a refused body must not be waited for.
        self._writer.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: Any = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Speak TLS from here, with a server that proves to be `server_hostname`."""
        try:
            await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except (OSError, ValueError) as error:
            await self.aclose()
            raise _handshake_error(error) from None
        except BaseException:
            await self.aclose()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        """Tell the client what it asks about the connection."""
        if info == "is_readable":
            return self._reader.at_eof() or self._writer.transport.is_closing()
        return self._writer.get_extra_info(info)


def _handshake_error(error: Exception) -> FetchError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return FetchRefusedError("server's certificate is not valid for it")
    return FetchError("TLS handshake failed")


class SyncStream(httpcore2.NetworkStream):
    """A blocking connection. `head` is to be told when the body of an answer begins."""

    def __init__(self, connected: socket.socket) -> None:
        self.head = HeadLimit()
        self._socket = connected
        _streams.add(self)

    def fileno(self) -> int:
        """The descriptor, or -1 once the connection has ended."""
        return self._socket.fileno()

    def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        """Return what has arrived, at most `max_bytes`; empty at the end."""
        try:
            self._arm(timeout)
            data = self._socket.recv(self.head.allow(max_bytes))
        except TimeoutError as error:
            raise httpcore2.ReadTimeout from error
        except OSError as error:
            raise httpcore2.ReadError from error
        self.head.count(len(data))
        return data

    def write(self, buffer: bytes, timeout: Any = None) -> None:
        """Send `buffer`: the begin of a request."""
        self.head.begin_head()
        try:
            self._arm(timeout)
            self._socket.sendall(buffer)
        except TimeoutError as error:
            raise httpcore2.WriteTimeout from error
        except OSError as error:
            raise httpcore2.WriteError from error

    def _arm(self, deadline: Deadline) -> None:
        remaining_s = deadline.remaining_s()
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)

    def close(self) -> None:
        """End the connection at once."""
        with suppress(OSError):
            self._socket.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: Any = None,
    ) -> httpcore2.NetworkStream:
        """Speak TLS from here, with a server that proves to be `server_hostname`."""
        try:
            self._arm(timeout)
            wrapped = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except TimeoutError as error:
            self.close()
            raise httpcore2.ConnectTimeout from error
        except (OSError, ValueError) as error:
            self.close()
            raise _handshake_error(error) from None
        return SyncStream(wrapped)

    def get_extra_info(self, info: str) -> Any:
        """Tell the client what it asks about the connection."""
        if info == "is_readable":
            # Only asked of idle connections: whatever has arrived there is the server's goodbye.
            poll = select.poll()
            poll.register(self._socket.fileno(), select.POLLIN)
            return bool(poll.poll(0))
        return None


_streams: WeakSet[AsyncStream | SyncStream] = WeakSet()


def leave_to_parent() -> None:
    """Let go of every open connection in the child of a fork, without a word to the peer.

    As long as a child holds a connection too, it does not end when the parent ends it. The
    descriptors stay valid, so that whoever still has one closes nothing of somebody else's.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in list(_streams):
        descriptor = stream.fileno()
        if descriptor >= 0:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
