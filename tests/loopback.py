"""Servers on loopback that answer exactly the bytes a test says, well-formed or not.

Owns sockets and threads, and ends them with the test. Nothing here reaches beyond 127.0.0.1.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self

import httpcore2
import pytest

from safelight.connector.network import Network

_TIMEOUT_S = 30


class Exchange:
    """One request that arrived, and the way to answer it."""

    def __init__(self, server: Server, connection: socket.socket, head: bytes) -> None:
        self._server = server
        self._connection = connection
        self.head = head
        self.path = head.split(b" ", 2)[1].decode()
        self.is_kept_alive = False
        lines = head.split(b"\r\n")[1:]
        pairs = (line.partition(b":") for line in lines if line)
        self.headers = {name.lower().decode(): value.strip().decode() for name, _, value in pairs}

    def send(self, data: bytes) -> None:
        """Send `data` as it is, in pieces that count as they leave."""
        for start in range(0, len(data), 16_384):
            piece = data[start : start + 16_384]
            self._connection.sendall(piece)
            self._server.count(len(piece))

    def answer(
        self, body: bytes = b"", status: str = "200 OK", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a well-formed answer and keep the connection open for the next request."""
        fields = {"Content-Length": str(len(body)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.send(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)
        self.is_kept_alive = True

    def redirect(self, location: str, status: str = "302 Found") -> None:
        """Send a redirect."""
        self.answer(status=status, headers={"Location": location})

    def wait_for_the_end(self, seconds: float) -> bool:
        """Wait until the test is over, at most `seconds`; whether it is."""
        return self._server.stopping.wait(seconds)

    def reset(self) -> None:
        """End the connection by a reset instead of a close."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._connection.close()


Answer = Callable[[Exchange], None]


class Server:
    """A threaded server on loopback; a context manager."""

    def __init__(
        self,
        answer: Answer,
        *,
        ssl_context: ssl.SSLContext | None = None,
        greeting: bytes = b"",
    ) -> None:
        self._answer = answer
        self._greeting = greeting
        self._ssl_context = ssl_context
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._open: set[socket.socket] = set()
        self.stopping = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.sent_bytes = 0

    @property
    def url(self) -> str:
        """The base URL, with a trailing slash."""
        return f"{'https' if self._ssl_context else 'http'}://127.0.0.1:{self.port}/"

    def count(self, nbytes: int) -> None:
        """Count bytes that have left."""
        with self._lock:
            self.sent_bytes += nbytes

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stopping.set()
        self._listener.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self.stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_TIMEOUT_S)
        # A client that goes away is what many tests are about.
        with suppress(OSError):
            if self._ssl_context is not None:
                connection = self._ssl_context.wrap_socket(connection, server_side=True)
            with self._lock:
                self._open.add(connection)
            connection.sendall(self._greeting)
            while self._serve_one(connection):
                pass
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _serve_one(self, connection: socket.socket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (received := connection.recv(65_536)):
                return False
            head += received
        exchange = Exchange(self, connection, head)
        with self._lock:
            self.exchanges.append(exchange)
        self._answer(exchange)
        return exchange.is_kept_alive


class Resolver(Network):
    """A network whose names are a table, and whose dials are recorded.

    Only loopback is dialed: any other address counts as reached and fails, so that a test sees
    what would have been dialed and no packet leaves.
    """

    def __init__(
        self,
        names: Mapping[str, list[str] | list[list[str]]] | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._names = {name: list(answers) for name, answers in (names or {}).items()}
        self._ssl_context = ssl_context
        self.resolved: list[str] = []
        self.dialed: list[str] = []

    def resolve(self, host: str, port: int) -> list[str]:
        self.resolved.append(host)
        answers = self._names.get(host)
        if not answers:
            raise socket.gaierror("no such name")
        if isinstance(answers[0], list):
            # One list per look-up, the last one again and again: a name that is rebound.
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            assert isinstance(answer, list)
            return answer
        return [str(answer) for answer in answers]

    async def connect(self, address: str, port: int) -> httpcore2.AsyncNetworkStream:
        self.dialed.append(address)
        if address != "127.0.0.1":
            raise ConnectionRefusedError
        return await super().connect(address, port)

    def ssl_context(self) -> ssl.SSLContext:
        return self._ssl_context or super().ssl_context()


def fails_as(error: BaseException, *secrets: str) -> None:
    """Assert that `error` tells nothing of `secrets`, nor of any loopback address."""
    text = f"{error} {error!r}"
    for secret in ("127.0.0.1", "http://", "https://", *secrets):
        if secret in text:
            pytest.fail(f"the error tells {secret!r}: {text}")
