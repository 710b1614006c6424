"""How many fetches run at once on one event loop, and in which order.

Owns fairness. One request that brings a hundred URLs, or a host that answers slowly, must not keep
the others waiting, and a thousand fetches that start together must not hold up the loop. Lives on
one event loop; must never be used from two.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

__all__ = ["Limits", "Pace"]


class Limits:
    """At most `max_active` fetches at once, and `max_active_per_host` for any one host.

    First come, first served, but a request queues for a host with no more fetches than the host
    takes at once. Its others wait behind them, so that requests alternate in the host's queue.
    `active` is the number of fetches that are under way.
    """

    def __init__(self, max_active: int, max_active_per_host: int) -> None:
        self._max_active_per_host = max_active_per_host
        self._all = asyncio.Semaphore(max_active)
        # A semaphore lives as long as somebody holds it or waits for it.
        self._by_key: WeakValueDictionary[object, asyncio.Semaphore] = WeakValueDictionary()
        self.active = 0

    @asynccontextmanager
    async def slot(self, request: object, host: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        # In this order for everybody: who holds one of `_all` waits for nothing.
        async with self._semaphore((id(request), host)), self._semaphore(host), self._all:
            self.active += 1
            try:
                yield
            finally:
                self.active -= 1

    def _semaphore(self, key: object) -> asyncio.Semaphore:
        semaphore = self._by_key.get(key)
        if semaphore is None:
            semaphore = self._by_key[key] = asyncio.Semaphore(self._max_active_per_host)
        return semaphore


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
