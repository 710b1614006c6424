"""Pool and cache under threads, event loops, failures and destructors."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from safelight.cache import MediaCache
from safelight.errors import SafelightError
from safelight.pool import MediaPool, media_pool

pytestmark = pytest.mark.timeout(120)

# A soak asks for more of the same; the default is what every change can afford.
ROUNDS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "slow" else 1


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to come so far; pytest-timeout bounds it."""
    while not condition():
        time.sleep(0.001)


# --- waiters ---


def test_ten_thousand_cancelled_waiters_leave_nothing_behind() -> None:
    cache = MediaCache(100)
    gate = threading.Event()

    def slow() -> tuple[str, int]:
        gate.wait(60)
        return "v", 1

    async def main() -> str:
        tasks = [asyncio.create_task(cache.get_or_compute_async(b"k", slow)) for _ in range(10_000)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert all(task.cancelled() for task in tasks)
        references = [weakref.ref(task) for task in tasks]
        del task
        tasks.clear()
        gc.collect()
        # The flight is still under way: it must hold none of them.
        assert [ref for ref in references if ref() is not None] == []
        gate.set()
        return await cache.get_or_compute_async(b"k", slow)

    assert asyncio.run(main()) == "v"
    stats = cache.stats()
    assert (stats.cancelled, stats.in_flight, stats.misses) == (10_000, 0, 1)


def test_loop_closed_under_a_waiter_leaves_the_work_to_the_others() -> None:
    cache = MediaCache(100)
    gate = threading.Event()

    def slow() -> tuple[str, int]:
        gate.wait(60)
        return "v", 1

    loop = asyncio.new_event_loop()
    waiter = loop.create_task(cache.get_or_compute_async(b"k", slow))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    threading.Timer(0.05, gate.set).start()
    assert cache.get_or_compute(b"k", slow) == "v"
    assert not waiter.done()
    waiter._log_destroy_pending = False  # type: ignore[attr-defined]
    del waiter
    gc.collect()
    assert (cache.stats().cancelled, cache.stats().in_flight) == (1, 0)


def test_work_nobody_waits_for_gives_way_only_without_room() -> None:
    pool = MediaPool(1, max_queue=2)
    cache = MediaCache(100, pool=pool)
    gate = threading.Event()
    started = threading.Event()

    def block() -> None:
        started.set()
        gate.wait(60)

    async def leave(key: bytes) -> None:
        task = asyncio.create_task(cache.get_or_compute_async(key, lambda: (key, 1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def main() -> None:
        pool.submit(block)
        await asyncio.to_thread(started.wait, 60)
        await leave(b"has room")
        pool.submit(int)
        await leave(b"has none")

    asyncio.run(main())
    assert cache.stats().in_flight == 1
    gate.set()
    pool.shutdown()
    assert (b"has room" in cache, b"has none" in cache) == (True, False)


def test_waiters_of_withdrawn_work_ask_again() -> None:
    """One that joins just as the work is withdrawn must not suffer for it."""
    pool = MediaPool(1, max_queue=1)
    cache = MediaCache(1 << 20, pool=pool)

    async def main(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            key = bytes([rng.randrange(4)])
            tasks = [
                asyncio.create_task(cache.get_or_compute_async(key, partial(divmod, 7, 2)))
                for _ in range(3)
            ]
            await asyncio.sleep(0)
            tasks[0].cancel()
            tasks[rng.randrange(3)].cancel()
            for answer in await asyncio.gather(*tasks, return_exceptions=True):
                assert answer == 3 or isinstance(answer, asyncio.CancelledError)
            cache.invalidate(key)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(main(n))) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.shutdown()
    assert cache.stats().in_flight == 0


# --- failures ---


class Odd(Exception):
    """An exception that `copy.copy` cannot copy."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")
        self.second = second


class Stop(BaseException):
    """Not an `Exception`."""


@pytest.mark.parametrize(
    "original",
    [
        ValueError("v"),
        Odd("a", "b"),
        OSError(2, "no such file"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        StopIteration(3),
        GeneratorExit(),
        KeyboardInterrupt(),
        SystemExit(4),
        Stop("s"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_work_raises_completes_the_flight_and_spares_the_worker(
    original: BaseException,
) -> None:
    pool = MediaPool(1)
    cache = MediaCache(100, pool=pool)

    def work() -> tuple[str, int]:
        raise original

    errors: list[BaseException] = []

    def ask() -> None:
        try:
            cache.get_or_compute(b"k", work)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [type(original)] * 4
    assert len({id(error) for error in errors} | {id(original)}) == 5
    assert all(error.__cause__ is original for error in errors)
    assert all((str(error), error.args) == (str(original), original.args) for error in errors)
    assert all(vars(error) == vars(original) for error in errors)
    assert pool.submit(lambda: "alive").result() == "alive"
    pool.shutdown()


def test_stop_iteration_reaches_a_coroutine_as_the_language_has_it() -> None:
    cache = MediaCache(100)

    def work() -> tuple[str, int]:
        raise StopIteration

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        asyncio.run(cache.get_or_compute_async(b"k", work))


def test_notes_of_one_waiter_stay_its_own() -> None:
    original = ValueError("v")
    original.add_note("from the work")
    job = media_pool().submit(partial(_raise, original))
    errors = []
    for note in "ab":
        with pytest.raises(ValueError, match="v") as info:
            job.result()
        info.value.add_note(note)
        errors.append(info.value)
    assert [error.__notes__ for error in errors] == [["from the work", "a"], ["from the work", "b"]]
    assert job.exception() is original


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("answer", [None, 3, ("v",), ("v", -1), ("v", 1 << 64), ("v", "1"), "ab"])
def test_answer_that_is_no_pair_is_a_failure(answer: Any) -> None:
    cache = MediaCache(100)
    with pytest.raises((TypeError, ValueError)):
        cache.get_or_compute(b"k", lambda: answer)
    assert (len(cache), cache.stats().failures) == (0, 1)


# --- work that asks for work ---


@pytest.mark.parametrize("threads", [1, 2])
def test_keys_that_ask_for_each_other_are_an_error(threads: int) -> None:
    pool = MediaPool(threads)
    cache = MediaCache(100, pool=pool)
    both = threading.Barrier(threads)

    def work(theirs: bytes, mine: bytes) -> tuple[str, int]:
        both.wait(30)
        return cache.get_or_compute(theirs, lambda: work(mine, theirs)), 1

    jobs = [
        threading.Thread(target=lambda a=a, b=b: outcomes.append(_outcome(cache, a, b, work)))
        for a, b in ([(b"a", b"b"), (b"b", b"a")][:threads])
    ]
    outcomes: list[str] = []
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert outcomes == ["RuntimeError"] * threads
    assert pool.submit(lambda: "alive").result() == "alive"
    pool.shutdown()


def _outcome(cache: MediaCache, mine: bytes, theirs: bytes, work: Callable[..., Any]) -> str:
    try:
        cache.get_or_compute(mine, lambda: work(theirs, mine))
    except Exception as error:
        return type(error).__name__
    return "a value"


def test_jobs_that_submit_and_wait_do_not_starve_a_pool_of_one() -> None:
    pool = MediaPool(1, max_queue=1)

    def fan_out(depth: int) -> int:
        if depth == 0:
            return 1
        return sum(job.result() for job in [pool.submit(fan_out, depth - 1) for _ in range(3)])

    assert pool.submit(fan_out, 4).result() == 81
    pool.shutdown()


def test_event_loop_inside_a_job_asks_the_cache() -> None:
    pool = MediaPool(1)
    cache = MediaCache(100, pool=pool)

    async def ask() -> str:
        values = await asyncio.gather(
            *(cache.get_or_compute_async(b"k", lambda: ("v", 1)) for _ in range(3))
        )
        return "".join(values)

    assert pool.submit(lambda: asyncio.run(ask())).result() == "vvv"
    pool.shutdown()


# --- destructors and garbage ---


def test_destructor_of_an_evicted_value_may_call_the_cache() -> None:
    cache = MediaCache(10)
    seen: list[int] = []

    class Calls:
        def __del__(self) -> None:
            cache.put(b"from del", "v", 1)
            cache.get_or_compute(b"computed in del", lambda: ("v", 1))
            seen.append(len(cache))

    cache.put(b"a", Calls(), 10)
    cache.put(b"b", 1, 10)
    cache.put(b"c", Calls(), 8)
    cache.put(b"c", Calls(), 8)
    cache.invalidate(b"c")
    cache.put(b"d", Calls(), 8)
    cache.clear()
    assert len(seen) == 4
    assert cache.nbytes <= 10


def test_cycle_through_the_cache_is_collected() -> None:
    class Holder:
        cache: MediaCache

    cache = MediaCache(100)
    holder = Holder()
    holder.cache = cache
    cache.put(b"k", holder, 1)
    dead = weakref.ref(holder)
    del cache, holder
    gc.collect()
    assert dead() is None


def test_finished_job_holds_no_argument() -> None:
    class Payload:
        pass

    payload = Payload()
    dead = weakref.ref(payload)
    job = media_pool().submit(lambda _: None, payload)
    job.result()
    del payload
    gc.collect()
    assert dead() is None


def test_withdrawn_job_holds_no_argument() -> None:
    class Payload:
        pass

    pool = MediaPool(1)
    gate = threading.Event()
    blocker = pool.submit(gate.wait, 60)
    payload = Payload()
    dead = weakref.ref(payload)
    job = pool.submit(lambda _: None, payload)
    del payload
    assert job.cancel()
    gc.collect()
    assert dead() is None
    gate.set()
    assert blocker.result()
    pool.shutdown()


# --- the pool's threads ---


def test_threads_are_named_for_python_and_the_system() -> None:
    pool = MediaPool(1, name="sl-test")
    name, native = pool.submit(
        lambda: (threading.current_thread().name, threading.get_native_id())
    ).result()
    assert name == "sl-test-0"
    if sys.platform == "linux":
        assert Path(f"/proc/self/task/{native}/comm").read_text().strip() == "sl-test-0"
    pool.shutdown()


def test_waiting_releases_the_interpreter() -> None:
    progress = [0]
    gate = threading.Event()

    def count() -> None:
        while not gate.is_set():
            progress[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    before = progress[0]
    MediaPool(1).submit(until, lambda: progress[0] > before + 1000).result()
    gate.set()
    counter.join()


# --- everything at once ---


class Value:
    """A value whose destructor calls the cache now and then."""

    def __init__(self, cache: MediaCache, key: bytes) -> None:
        self.cache = cache
        self.key = key

    def __del__(self) -> None:
        if self.key[0] % 16 == 0:
            self.cache.touch(self.key)


def test_stress() -> None:
    pool = MediaPool(2, max_queue=8)
    cache = MediaCache(2_000, max_in_flight_bytes=300, pool=pool)
    errors: list[BaseException] = []

    def compute(key: bytes, seed: int) -> tuple[Value, int]:
        if seed % 7 == 0:
            raise SafelightError("failed")
        if seed % 11 == 0:
            cache.get_or_compute(b"shared" + key[:1], lambda: (Value(cache, key), 5))
        return Value(cache, key), 1 + seed % 120

    def guarded(body: Callable[[random.Random], None], rng: random.Random) -> None:
        try:
            body(rng)
        except BaseException as error:
            errors.append(error)

    def thread(rng: random.Random) -> None:
        for _ in range(400 * ROUNDS):
            key = bytes([rng.randrange(64)])
            match rng.randrange(10):
                case 0:
                    cache.invalidate(key)
                case 1:
                    cache.put(key, Value(cache, key), rng.randrange(200))
                case 2:
                    if cache.pin(key):
                        cache.unpin(key)
                case 3 if rng.random() < 0.02:
                    cache.clear()
                case _:
                    try:
                        value = cache.get_or_compute(
                            key,
                            partial(compute, key, rng.randrange(1000)),
                            predicted_nbytes=rng.randrange(200),
                            background=rng.random() < 0.3,
                        )
                        assert value.key == key
                    except SafelightError as error:
                        assert error.__cause__ is not None

    def event_loop(rng: random.Random) -> None:
        async def one(key: bytes) -> None:
            try:
                value = await cache.get_or_compute_async(
                    key, partial(compute, key, rng.randrange(1000)), predicted_nbytes=20
                )
                assert value.key == key
            except SafelightError as error:
                assert error.__cause__ is not None

        async def main() -> None:
            for _ in range(25 * ROUNDS):
                tasks = [asyncio.create_task(one(bytes([rng.randrange(64)]))) for _ in range(16)]
                await asyncio.sleep(0)
                for task in rng.sample(tasks, 5):
                    task.cancel()
                for answer in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(answer, BaseException):
                        assert isinstance(answer, asyncio.CancelledError)

        for _ in range(2):
            asyncio.run(main())

    def collector(rng: random.Random) -> None:
        for _ in range(20 * ROUNDS):
            gc.collect(rng.randrange(3))
            time.sleep(0.005)

    bodies = [thread, thread, event_loop, event_loop, collector]
    threads = [
        threading.Thread(target=guarded, args=(body, random.Random(seed)))
        for seed, body in enumerate(bodies)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    until(lambda: cache.stats().in_flight == 0)
    stats = cache.stats()
    assert stats.in_flight_nbytes == 0
    assert stats.pinned_nbytes == 0
    assert 0 < stats.nbytes <= stats.max_bytes
    # Exact: taking every entry out one by one leaves nothing over.
    keys = [prefix + bytes([n]) for n in range(64) for prefix in (b"", b"shared")]
    removed = sum(cache.invalidate(key) for key in keys)
    assert (removed, cache.nbytes, len(cache)) == (stats.entries, 0, 0)
    pool.shutdown()
    assert pool.stats().threads == 0
