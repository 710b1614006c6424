"""Whose turn it is: a bounded number of fetches at once, requests served in rotation.

Owns the order. One request that brings a hundred URLs, or a host that answers slowly, must not
keep the others waiting: requests take turns, and no host holds more than its share. Lives on one
event loop; must never be used from two.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Turns"]

_Waiters = OrderedDict[str, deque[asyncio.Future[None]]]


class Turns:
    """At most `max_active` turns at once, and `max_active_per_host` for any one host."""

    def __init__(self, max_active: int, max_active_per_host: int) -> None:
        self._max_active = max_active
        self._max_active_per_host = max_active_per_host
        self._active = 0
        self._active_by_host: Counter[str] = Counter()
        # Owner -> host -> who waits; the owner at the front is served next.
        self._waiting: OrderedDict[object, _Waiters] = OrderedDict()

    @asynccontextmanager
    async def turn(self, owner: object, host: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it. `owner` is the request, which must be hashable."""
        # Whoever waits is not eligible: they are granted as soon as they are. So nobody is
        # overtaken here.
        if self._is_free(host):
            self._take(host)
        else:
            await self._wait(owner, host)
        try:
            yield
        finally:
            self._release(host)

    async def _wait(self, owner: object, host: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        hosts = self._waiting.setdefault(owner, OrderedDict())
        hosts.setdefault(host, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._release(host)
            raise

    def _is_free(self, host: str) -> bool:
        return (
            self._active < self._max_active
            and self._active_by_host[host] < self._max_active_per_host
        )

    def _take(self, host: str) -> None:
        self._active += 1
        self._active_by_host[host] += 1

    def _release(self, host: str) -> None:
        self._active -= 1
        self._active_by_host[host] -= 1
        if not self._active_by_host[host]:
            del self._active_by_host[host]
        while self._grant_one():
            pass

    def _grant_one(self) -> bool:
        for owner in list(self._waiting):
            hosts = self._waiting[owner]
            for host in list(hosts):
                waiters = hosts[host]
                while waiters and waiters[0].done():
                    del waiters[0]
                if waiters and self._is_free(host):
                    self._take(host)
                    waiter = waiters.popleft()
                    waiter.set_result(None)
                    self._waiting.move_to_end(owner)
                    return True
                if not waiters:
                    del hosts[host]
            if not hosts:
                del self._waiting[owner]
        return False
