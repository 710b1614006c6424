"""The processor cache: what an entry weighs, whose it is, and who leaves first."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from safelight import MultiModalKwargsItem, MultiModalProcessorOnlyCache
from safelight.cache.processor import ProcessorCacheEntry
from safelight.inputs.fields import MultiModalBatchedField, MultiModalFieldElem
from safelight.processing.prompt_updates import PromptReplacement

ONE, TWO = b"\x01" * 32, b"\x02" * 32


def entry(nbytes: int, tokens: int = 0) -> ProcessorCacheEntry:
    elem = MultiModalFieldElem(np.zeros(nbytes, np.uint8), MultiModalBatchedField())
    update = PromptReplacement("image", [1], [1] * tokens).resolve(0)
    return ProcessorCacheEntry(MultiModalKwargsItem({"a": elem}), [update])


OVERHEAD = entry(0).nbytes


def test_an_entry_weighs_its_tensors_its_tokens_and_what_is_around_them() -> None:
    assert entry(1000).nbytes == 1000 + OVERHEAD
    assert entry(1000, tokens=10).nbytes == entry(1000).nbytes + 80
    assert 0 < OVERHEAD <= 4096


def test_get_put_invalidate_clear() -> None:
    cache = MultiModalProcessorOnlyCache(1 << 20)
    assert cache.get(ONE, "a") is None
    assert not cache.is_cached(ONE, "a")
    first = entry(10)
    cache.put(ONE, "a", first)
    assert cache.get(ONE, "a") is first
    assert cache.is_cached(ONE, "a")
    cache.put(ONE, "a", second := entry(20))
    assert cache.get(ONE, "a") is second
    assert cache.stats().entries == 1
    assert cache.stats().nbytes == second.nbytes
    cache.put(ONE, "b", first)
    cache.invalidate(ONE, "a")
    cache.invalidate(ONE, "never there")
    assert cache.get(ONE, "a") is None
    assert cache.get(ONE, "b") is first
    cache.clear_cache()
    assert cache.stats().entries == cache.stats().nbytes == 0


def test_a_hash_is_its_processors_own() -> None:
    cache = MultiModalProcessorOnlyCache(1 << 20)
    cache.put(ONE, "a", first := entry(1))
    cache.put(TWO, "a", second := entry(1))
    assert cache.get(ONE, "a") is first
    assert cache.get(TWO, "a") is second
    cache.invalidate(ONE, "a")
    assert cache.is_cached(TWO, "a")


def test_a_hash_may_be_any_text() -> None:
    cache = MultiModalProcessorOnlyCache(1 << 20)
    names = ["", "a", "ünï", "x" * 10_000, "\0"]
    entries = {name: entry(1) for name in names}
    for name, value in entries.items():
        cache.put(ONE, name, value)
    assert all(cache.get(ONE, name) is value for name, value in entries.items())


def test_the_least_recently_used_leaves_first_and_is_cached_is_no_use() -> None:
    cache = MultiModalProcessorOnlyCache(3 * entry(100).nbytes)
    for name in "abc":
        cache.put(ONE, name, entry(100))
    for _ in range(5):
        assert cache.is_cached(ONE, "a")
    assert cache.get(ONE, "b") is not None
    cache.put(ONE, "d", entry(100))
    assert [cache.is_cached(ONE, name) for name in "abcd"] == [False, True, True, True]
    cache.put(ONE, "e", entry(100))
    assert [cache.is_cached(ONE, name) for name in "bcde"] == [True, False, True, True]


def test_an_entry_over_the_whole_is_not_kept_and_evicts_nobody() -> None:
    cache = MultiModalProcessorOnlyCache(2 * entry(100).nbytes)
    cache.put(ONE, "a", entry(100))
    cache.put(ONE, "b", entry(100_000))
    assert cache.is_cached(ONE, "a")
    assert not cache.is_cached(ONE, "b")
    assert cache.stats().oversize == 1


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    cache = MultiModalProcessorOnlyCache(0)
    cache.put(ONE, "a", entry(0))
    assert cache.get(ONE, "a") is None
    assert cache.stats().entries == 0


def test_counters_tell_hits_from_misses() -> None:
    cache = MultiModalProcessorOnlyCache(1 << 20)
    cache.get(ONE, "a")
    cache.put(ONE, "a", entry(1))
    cache.get(ONE, "a")
    cache.is_cached(ONE, "a")
    cache.is_cached(ONE, "b")
    stats = cache.stats()
    assert (stats.hits, stats.misses) == (1, 1), "asking whether is no look-up"


@pytest.mark.timeout(60)
def test_threads_may_share_it() -> None:
    cache = MultiModalProcessorOnlyCache(20 * entry(100).nbytes)
    failures: list[str] = []

    def use(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for number in rng.integers(0, 40, 500):
            found = cache.get(ONE, str(number))
            if found is None:
                cache.put(ONE, str(number), entry(int(number)))
            elif len(found.item["a"].data) != number:
                failures.append(f"{number}: another's entry")
            if cache.stats().nbytes > 20 * entry(100).nbytes:
                failures.append("over its bytes")

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
