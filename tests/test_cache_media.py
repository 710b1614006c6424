"""`MediaCache`: exact bytes, one computation per key, waiters that come and go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from safelight.cache import MediaCache
from safelight.errors import HeaderError

pytestmark = pytest.mark.timeout(60)


def counted(value: Any, nbytes: int = 1) -> tuple[Callable[[], tuple[Any, int]], list[int]]:
    """Return a computation and the list of threads that ran it."""
    calls: list[int] = []

    def compute() -> tuple[Any, int]:
        calls.append(threading.get_ident())
        return value, nbytes

    return compute, calls


def test_get_is_a_built_in() -> None:
    assert type(MediaCache(1).get).__name__ == "builtin_function_or_method"


def test_put_get_and_exact_bytes() -> None:
    cache = MediaCache(100)
    assert cache.get(b"a") is None
    assert cache.put(b"a", "A", 60)
    assert cache.put(b"b", None, 40)
    assert (cache.get(b"a"), cache.get(b"b", "default"), cache.nbytes, len(cache)) == (
        "A",
        None,
        100,
        2,
    )
    assert cache.put(b"c", "C", 1)
    assert (b"a" in cache, b"b" in cache, cache.nbytes) == (False, True, 41)
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.evictions, stats.entries) == (2, 1, 1, 2)
    assert cache.invalidate(b"b")
    assert not cache.invalidate(b"b")
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)


def test_oversize_is_returned_not_stored_and_drops_only_its_own_old_value() -> None:
    cache = MediaCache(100)
    cache.put(b"a", 1, 40)
    cache.put(b"b", 2, 40)
    assert not cache.put(b"a", 3, 500)
    assert (b"a" in cache, cache.get(b"b"), cache.nbytes) == (False, 2, 40)
    compute, _ = counted("large", 500)
    assert cache.get_or_compute(b"c", compute) == "large"
    assert b"c" not in cache
    assert cache.stats().oversize == 2


def test_zero_bytes_store_nothing() -> None:
    cache = MediaCache(0)
    assert not cache.put(b"a", 1, 0)
    compute, calls = counted("v", 0)
    assert [cache.get_or_compute(b"a", compute) for _ in range(3)] == ["v"] * 3
    assert len(calls) == 3


def test_computes_once_on_the_pool() -> None:
    cache = MediaCache(100)
    compute, calls = counted("v")
    assert [cache.get_or_compute(b"k", compute) for _ in range(3)] == ["v"] * 3
    assert len(calls) == 1
    assert calls[0] != threading.get_ident()


def test_failure_reaches_each_waiter_fresh_and_is_not_stored() -> None:
    cache = MediaCache(100)
    original = HeaderError("no header", modality="image", index=3)

    def compute() -> tuple[str, int]:
        raise original

    caught = []
    for _ in range(2):
        with pytest.raises(HeaderError) as info:
            cache.get_or_compute(b"k", compute)
        caught.append(info.value)
    assert all(error.__cause__ is original and error is not original for error in caught)
    assert all(error.index == 3 for error in caught)
    assert caught[0] is not caught[1]
    assert (cache.stats().failures, len(cache)) == (2, 0)


def test_cancelled_first_caller_leaves_the_others_their_value() -> None:
    cache = MediaCache(100)
    calls = []
    gate = threading.Event()

    def slow() -> tuple[str, int]:
        calls.append(1)
        gate.wait(30)
        return "v", 1

    async def main() -> str:
        first = asyncio.create_task(cache.get_or_compute_async(b"k", slow))
        second = asyncio.create_task(cache.get_or_compute_async(b"k", slow))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.set()
        return await second

    assert asyncio.run(main()) == "v"
    assert len(calls) == 1
    assert cache.stats().cancelled == 1


def test_threads_and_event_loops_meet_on_one_flight() -> None:
    cache = MediaCache(100)
    gate = threading.Event()
    calls = []

    def slow() -> tuple[str, int]:
        calls.append(1)
        gate.wait(30)
        return "v", 1

    results: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(asyncio.run(cache.get_or_compute_async(b"k", slow)))
        )
        for _ in range(2)
    ] + [threading.Thread(target=lambda: results.append(cache.get_or_compute(b"k", slow)))]
    for thread in threads:
        thread.start()
    while cache.stats().joins < 2:
        pass
    gate.set()
    for thread in threads:
        thread.join()
    assert (results, len(calls)) == (["v"] * 3, 1)


def test_key_that_asks_for_itself_is_an_error() -> None:
    cache = MediaCache(100)

    def compute() -> tuple[str, int]:
        return cache.get_or_compute(b"k", compute), 1

    with pytest.raises(RuntimeError, match="waits for itself"):
        cache.get_or_compute(b"k", compute)


def test_computation_may_ask_for_another_key() -> None:
    cache = MediaCache(100)

    def nested(depth: int) -> tuple[int, int]:
        if depth == 0:
            return 0, 1
        key = str(depth - 1).encode()
        return cache.get_or_compute(key, lambda: nested(depth - 1)) + 1, 1

    assert cache.get_or_compute(b"top", lambda: nested(50)) == 50
