"""The cache against `cachetools` under a lock, `cachebox` and `async_lru`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import async_lru
import cachebox
import cachetools
import pytest

from comparison import Comparison
from safelight.cache import MediaCache
from safelight.key import derive_media_keys
from safelight.spec import DecodeSpec

# What a process holds of images of a megapixel; keys are what they are in use.
COUNT = 1_000
NBYTES = 100
KEYS = derive_media_keys([index.to_bytes(4, "little") for index in range(COUNT)], DecodeSpec())


def ours(count: int = COUNT) -> MediaCache:
    cache = MediaCache(count * NBYTES)
    for key in KEYS[:count]:
        cache.put(key, key, NBYTES)
    return cache


def get_all(get: Callable[[bytes], Any], keys: Sequence[bytes]) -> Any:
    value = None
    for key in keys:
        value = get(key)
    return value


def test_hit_against_cachetools(compare: Comparison) -> None:
    cache = ours()
    baseline: cachetools.LRUCache[bytes, bytes] = cachetools.LRUCache(
        COUNT * NBYTES, getsizeof=lambda _: NBYTES
    )
    for key in KEYS:
        baseline[key] = key
    lock = threading.Lock()

    def get_locked(keys: Sequence[bytes]) -> Any:
        value = None
        for key in keys:
            with lock:
                value = baseline.get(key)
        return value

    compare(
        "cache hit, cachetools + Lock",
        ours=lambda keys: get_all(cache.get, keys),
        baseline=get_locked,
        args=(KEYS,),
        target=6.0,
    )


def test_hit_against_cachebox(compare: Comparison) -> None:
    cache = ours()
    baseline: cachebox.LRUCache[bytes, bytes] = cachebox.LRUCache(COUNT)
    for key in KEYS:
        baseline.insert(key, key)
    compare(
        "cache hit, cachebox",
        ours=lambda keys: get_all(cache.get, keys),
        baseline=lambda keys: get_all(baseline.get, keys),
        args=(KEYS,),
        target=0.7,
    )


def test_insert_by_bytes(compare: Comparison) -> None:
    """Half of the keys fit: every second insert evicts."""
    cache = MediaCache(COUNT // 2 * NBYTES)
    baseline: cachebox.LRUCache[bytes, bytes] = cachebox.LRUCache(
        COUNT // 2 * NBYTES, getsizeof=lambda _key, _value: NBYTES
    )

    def put_all(keys: Sequence[bytes]) -> int:
        put = cache.put
        for key in keys:
            put(key, key, NBYTES)
        return len(cache)

    def insert_all(keys: Sequence[bytes]) -> int:
        insert = baseline.insert
        for key in keys:
            insert(key, key)
        return len(baseline)

    compare(
        "cache insert by bytes, cachebox",
        ours=put_all,
        baseline=insert_all,
        args=(KEYS,),
        target=1.5,
    )


def compute() -> tuple[bytes, int]:
    return b"computed", NBYTES


def test_load_through_hit(compare: Comparison) -> None:
    cache = ours()

    @cachebox.cached(cachebox.LRUCache(COUNT))
    def baseline(key: bytes) -> bytes:
        return key

    def load_all(keys: Sequence[bytes]) -> Any:
        value = None
        for key in keys:
            value = cache.get_or_compute(key, compute)
        return value

    compare(
        "cache load-through hit, cachebox.cached",
        ours=load_all,
        baseline=lambda keys: get_all(baseline, keys),
        args=(KEYS,),
        target=2.5,
    )


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_load_through_hit_from_asyncio(
    compare: Comparison, loop: asyncio.AbstractEventLoop
) -> None:
    cache = ours()

    @async_lru.alru_cache(maxsize=COUNT)
    async def baseline(key: bytes) -> bytes:
        return key

    async def ask_ours(keys: Sequence[bytes]) -> Any:
        value = None
        for key in keys:
            value = await cache.get_or_compute_async(key, compute)
        return value

    async def ask_baseline(keys: Sequence[bytes]) -> Any:
        value = None
        for key in keys:
            value = await baseline(key)
        return value

    compare(
        "cache load-through hit from asyncio, async-lru",
        ours=lambda keys: loop.run_until_complete(ask_ours(keys)),
        baseline=lambda keys: loop.run_until_complete(ask_baseline(keys)),
        args=(KEYS,),
        target=4.0,
    )


def test_two_threads_get_as_much_done_as_one(compare: Comparison) -> None:
    """Nine look-ups in ten hit. Under one interpreter lock more cannot be had; less could."""
    fits = COUNT * 9 // 10
    cache = ours(fits)
    calls = 200

    def work(keys: Sequence[bytes]) -> int:
        for _ in range(calls):
            get_all(cache.get, keys)
        return len(keys)

    with ThreadPoolExecutor(2) as threads:
        compare(
            "cache, two threads against one, 90 % hits",
            ours=lambda keys: sum(threads.map(work, [keys[::2], keys[1::2]])),
            baseline=work,
            args=(KEYS,),
            target=0.9,
        )
