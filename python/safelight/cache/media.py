"""`MediaCache`: values by key, bounded by bytes, each computed once however many ask.

Owns the coroutine form only; the look-ups and the rest are Rust's
(``rust/core/src/{lru,flight,cache}``). Must never run a computation in a waiter's task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from safelight._safelight import Cache, is_worker
from safelight.pool import MediaPool

__all__ = ["CacheStats", "MediaCache"]

V = TypeVar("V")

# What no cached value can be.
_NOTHING: Any = object()


class CacheStats(NamedTuple):
    """Counters of a cache at one moment. ``_asdict()`` gives them to an exporter."""

    hits: int
    """Look-ups that found a value."""
    joins: int
    """Look-ups that found a computation under way."""
    misses: int
    """Look-ups that found neither."""
    failures: int
    """Computations that ended without a value."""
    oversize: int
    """Values that were returned but not stored, because they do not fit."""
    evictions: int
    """Values that left to make room."""
    cancelled: int
    """Waiters that left before their computation ended."""
    entries: int
    """Values held."""
    nbytes: int
    """Sum of their bytes."""
    pinned_nbytes: int
    """Sum of the bytes of the pinned ones."""
    max_bytes: int
    """The bound."""
    in_flight: int
    """Computations that have not ended."""
    in_flight_nbytes: int
    """Sum of the predicted bytes of those that were admitted."""


class MediaCache(Cache):
    """Byte-bounded LRU in which each missing value is computed once, whoever asks for it.

    Keys are bytes of any length. The order of eviction depends on the calls alone: get, put and
    touch make an entry the most recently used, and so does the end of its computation. A value
    larger than the cache is returned and not stored. Failures are never stored; each waiter
    raises a copy of its own, with the original as its cause.

    Threads and coroutines of any number of event loops may wait for the same key. Computations
    belong to the pool: cancelling a waiter leaves them running.

    Args:
        max_bytes: The bound. With 0 nothing is stored; concurrent callers of one key still share
            one computation.
        max_in_flight_bytes: Computations whose predicted bytes sum to more than this wait for
            each other; one alone always runs. None: no bound.
        pool: The pool that computes; None is the media pool.
    """

    __slots__ = ()

    async def get_or_compute_async(
        self,
        key: bytes,
        compute: Callable[[], tuple[V, int]],
        *,
        predicted_nbytes: int = 0,
        background: bool = False,
    ) -> V:
        """Return the value of `key`; if there is none, what `compute` makes of it on the pool.

        Args:
            key: Identity of the value.
            compute: Returns the value and its size in bytes. Called once, on a thread of the pool.
            predicted_nbytes: Bytes it is expected to need, for ``max_in_flight_bytes``.
            background: Compute only while the pool has nothing that somebody waits for; a caller
                in the foreground that joins lifts it there.

        Raises:
            BaseException: A copy of what `compute` raised.
            RuntimeError: The key is asked for by its own computation, or the pool is shut down.
        """
        value: V = self._hit(key, _NOTHING)
        if value is not _NOTHING:
            return value
        if is_worker():
            # Waiting on a loop would keep this worker from the very work it waits for.
            return self.get_or_compute(
                key, compute, predicted_nbytes=predicted_nbytes, background=background
            )
        while True:
            job, value = self._begin(key, compute, predicted_nbytes, background)
            if job is None:
                return value
            try:
                await MediaPool.wait_async([job])
            except BaseException:
                self._leave(job)
                raise
            # Work that was withdrawn before it started is asked for again.
            if not job.cancelled():
                return job.result()  # type: ignore[no-any-return]

    def stats(self) -> CacheStats:
        """Return the counters at this moment."""
        return CacheStats(**self._stats())
