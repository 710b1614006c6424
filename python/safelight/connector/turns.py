"""Whose turn it is: a bounded number of fetches at once, requests served in rotation.

Owns the order. One request that brings a hundred URLs, or a host that answers slowly, must not
keep the others waiting: requests take turns, and no host holds more than its share. A thousand
fetches that begin together must not hold up the event loop either: they begin a few a step.
Lives on one event loop; must never be used from two.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

__all__ = ["Pace", "Turns"]


class _Waiter(NamedTuple):
    owner: object
    host: str
    future: asyncio.Future[None]


class _Rotation:
    """Waiters by owner, taken from each owner in turn."""

    def __init__(self) -> None:
        self._queues: OrderedDict[object, deque[_Waiter]] = OrderedDict()

    def add(self, waiter: _Waiter) -> None:
        self._queues.setdefault(waiter.owner, deque()).append(waiter)

    def take(self) -> _Waiter | None:
        """Return the next waiter, which may have been cancelled, or None."""
        if not self._queues:
            return None
        owner, queue = next(iter(self._queues.items()))
        waiter = queue.popleft()
        if not queue:
            del self._queues[owner]
        elif not waiter.future.done():
            self._queues.move_to_end(owner)
        return waiter


class Turns:
    """At most `max_active` turns at once, and `max_active_per_host` for any one host."""

    def __init__(self, max_active: int, max_active_per_host: int) -> None:
        self._max_active = max_active
        self._max_active_per_host = max_active_per_host
        self._active = 0
        self._active_by_host: Counter[str] = Counter()
        # Who waits for a turn of any host, and who waits for a turn of one host.
        self._ready = _Rotation()
        self._parked: dict[str, _Rotation] = {}

    @property
    def active(self) -> int:
        """Turns that are held."""
        return self._active

    @asynccontextmanager
    async def turn(self, owner: object, host: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it. `owner` is the request, which must be hashable."""
        # A free turn is taken at once: whoever waits could not have it, or would have been
        # granted it when it became free.
        if self._is_open(host) and self._active < self._max_active:
            self._take(host)
        else:
            await self._wait(owner, host)
        try:
            yield
        finally:
            self._release(host)

    async def _wait(self, owner: object, host: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue(_Waiter(owner, host, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._release(host)
            raise

    def _queue(self, waiter: _Waiter) -> None:
        if self._is_open(waiter.host):
            self._ready.add(waiter)
        else:
            self._parked.setdefault(waiter.host, _Rotation()).add(waiter)

    def _is_open(self, host: str) -> bool:
        return self._active_by_host[host] < self._max_active_per_host

    def _take(self, host: str) -> None:
        self._active += 1
        self._active_by_host[host] += 1

    def _release(self, host: str) -> None:
        self._active -= 1
        self._active_by_host[host] -= 1
        if not self._active_by_host[host]:
            del self._active_by_host[host]
        self._unpark(host)
        self._grant()

    def _unpark(self, host: str) -> None:
        """Let one of those who wait for `host` wait among all.

        So each turn that a host has left is claimed by a ready waiter, or nobody is parked there.
        """
        parked = self._parked.get(host)
        if parked is None:
            return
        while (waiter := parked.take()) is not None:
            if not waiter.future.done():
                self._ready.add(waiter)
                return
        del self._parked[host]

    def _grant(self) -> None:
        """Grant the turn that became free: one at most."""
        while (waiter := self._ready.take()) is not None:
            if waiter.future.done():
                # Cancelled: its claim passes on.
                if self._is_open(waiter.host):
                    self._unpark(waiter.host)
            elif self._is_open(waiter.host):
                self._take(waiter.host)
                waiter.future.set_result(None)
                return
            else:
                # Its host has filled up meanwhile.
                self._queue(waiter)


class Pace:
    """At most `max_starts` passages in one step of the event loop."""

    def __init__(self, max_starts: int) -> None:
        self._max_starts = max_starts
        self._starts = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def keep(self) -> None:
        """Return in this step of the loop if there is room, else in a later one, in order."""
        loop = asyncio.get_running_loop()
        if self._starts == 0:
            loop.call_soon(self._next_step, loop)
        if self._starts < self._max_starts and not self._waiting:
            self._starts += 1
            return
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        await future

    def _next_step(self, loop: asyncio.AbstractEventLoop) -> None:
        self._starts = 0
        while self._waiting and self._starts < self._max_starts:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                self._starts += 1
        if self._starts:
            loop.call_soon(self._next_step, loop)
