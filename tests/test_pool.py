"""The pool, and decodes submitted to it and collected from it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from safelight._safelight import Job
from safelight.decodes import (
    MediaDecodeJob,
    collect_media_decodes,
    collect_media_decodes_async,
    submit_media_decodes,
)
from safelight.errors import DecodeError, HeaderError
from safelight.pool import MediaPool, media_pool

pytestmark = pytest.mark.timeout(60)


class Ref:
    """As much of a ref as the executor needs."""

    def __init__(self, value: Any, decoded: bool = False) -> None:
        self.value = value
        self.is_decoded = decoded
        self.gate: threading.Event | None = None
        self.started = threading.Event()

    def decode(self) -> Any:
        self.started.set()
        if self.gate is not None:
            self.gate.wait(30)
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


def test_media_pool_is_one() -> None:
    assert media_pool() is media_pool()
    assert 1 <= media_pool().max_threads <= 8


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own there")
@pytest.mark.parametrize("niceness", [0, 3])
def test_threads_are_nicer_than_the_process(niceness: int) -> None:
    def own() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = own()
    pool = MediaPool(1, niceness=niceness)
    assert pool.submit(own).result() == min(before + niceness, 19)
    assert own() == before
    pool.shutdown()
    with pytest.raises(ValueError, match="niceness"):
        MediaPool(1, niceness=40)


@pytest.mark.timeout(30)
@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own there")
def test_threads_that_a_job_starts_are_no_nicer() -> None:
    pool = MediaPool(2, niceness=3)
    second = threading.Event()

    def own() -> int:
        second.set()
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def nested() -> Job[int]:
        job = pool.submit(own)
        # Without a call that would have it run here.
        assert second.wait(20)
        return job

    expected = min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
    assert pool.submit(nested).result().result() == expected
    pool.shutdown()


def test_submit_takes_arguments_and_batches() -> None:
    pool = MediaPool(2)
    assert pool.submit(divmod, 7, 2).result() == (3, 1)
    assert pool.submit(int, "ff", base=16).result() == 255
    jobs = pool.submit_batch(partial(pow, i, 2) for i in range(100))
    assert [job.result() for job in jobs] == [i * i for i in range(100)]
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)


@pytest.mark.parametrize("call", ["positional", "keyword", "executor", "foreign"])
def test_submit_media_decodes_skips_what_is_decoded(call: str) -> None:
    items = [("image", 4, Ref("a")), ("video", 0, Ref("b", decoded=True)), ("audio", 2, Ref("c"))]
    jobs: list[MediaDecodeJob] = []
    with ThreadPoolExecutor(1) as foreign:
        if call == "positional":
            submit_media_decodes(items, jobs)
        elif call == "keyword":
            submit_media_decodes(items, jobs=jobs)
        elif call == "executor":
            submit_media_decodes(items, media_pool(), jobs)
        else:
            submit_media_decodes(items, foreign, jobs)
        assert [(job.modality, job.original_index) for job in jobs] == [("image", 4), ("audio", 2)]
        assert collect_media_decodes(jobs) == ["a", "c"]


def test_partial_submission_loses_no_job() -> None:
    def items() -> Any:
        yield Ref("a")
        yield Ref("b")
        raise OSError("half way")

    jobs: list[MediaDecodeJob] = []
    with pytest.raises(OSError, match="half way"):
        submit_media_decodes(items(), jobs=jobs)
    assert collect_media_decodes(jobs) == ["a", "b"]


def test_first_failure_in_request_order_after_everything_ended() -> None:
    gate = threading.Event()
    late = Ref(HeaderError("no header"))
    late.gate = gate
    refs = [("image", 0, Ref("a")), ("image", 7, late), ("image", 1, Ref(ValueError("secret")))]
    pool = MediaPool(3)
    jobs = submit_media_decodes(refs, pool)
    threading.Timer(0.05, gate.set).start()
    with pytest.raises(HeaderError, match=r"^image 7: no header$") as info:
        collect_media_decodes(jobs)
    assert info.value.__cause__ is late.value
    assert all(job.future.done() for job in jobs)


def test_unknown_failure_is_a_decode_error_that_echoes_nothing() -> None:
    jobs = submit_media_decodes([("audio", 3, Ref(ValueError("/srv/secret")))])
    with pytest.raises(DecodeError) as info:
        collect_media_decodes(jobs)
    assert str(info.value) == "audio 3: cannot be decoded"


def test_error_factory_makes_what_is_raised() -> None:
    cause = ValueError("x")
    jobs = submit_media_decodes([("audio", 3, Ref(cause))])
    with pytest.raises(LookupError) as info:
        collect_media_decodes(jobs, lambda modality, index, cause: LookupError(modality, index))
    assert info.value.args == ("audio", 3)
    assert info.value.__cause__ is cause


@pytest.mark.parametrize("foreign", [False, True])
def test_double_cancellation_withdraws_what_has_not_started_and_drains_the_rest(
    foreign: bool,
) -> None:
    pool = ThreadPoolExecutor(1) if foreign else MediaPool(1)
    running, queued = Ref("a"), Ref("b")
    running.gate = threading.Event()

    async def main() -> list[MediaDecodeJob]:
        jobs = submit_media_decodes([running, queued], pool)
        task = asyncio.create_task(collect_media_decodes_async(jobs))
        await asyncio.to_thread(running.started.wait, 30)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        assert running.gate is not None
        running.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return jobs

    jobs = asyncio.run(main())
    assert jobs[0].future.result() == "a"
    assert jobs[1].future.cancelled()
    assert not queued.started.is_set()
    pool.shutdown()


def test_jobs_stream_as_they_end() -> None:
    pool = MediaPool(3)
    gates = [threading.Event() for _ in range(3)]
    jobs = [pool.submit(gate.wait, 30) for gate in gates]
    order = []
    gates[2].set()
    for job in pool.as_completed(jobs):
        order.append(jobs.index(job))
        gates[order[-1] - 1].set()
    assert order == [2, 1, 0]
    assert [job.result() for job in jobs] == [True] * 3
    pool.shutdown()


def test_jobs_stream_to_an_event_loop_as_they_end() -> None:
    pool = MediaPool(3)
    gates = [threading.Event() for _ in range(3)]

    async def main() -> list[int]:
        jobs = [pool.submit(gate.wait, 30) for gate in gates]
        order: list[int] = []
        gates[2].set()
        async for job in pool.as_completed_async(jobs):
            order.append(jobs.index(job))
            gates[order[-1] - 1].set()
        return order

    assert asyncio.run(main()) == [2, 1, 0]
    pool.shutdown()


def test_a_batch_wakes_its_loop_once() -> None:
    pool = MediaPool(2)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        calls = 0
        call_soon_threadsafe = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
            nonlocal calls
            calls += 1
            return call_soon_threadsafe(*args, **kwargs)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        await pool.wait_async(pool.submit_batch([int] * 64))
        return calls

    assert asyncio.run(main()) == 1
    pool.shutdown()


def test_run_async_returns_raises_and_withdraws() -> None:
    pool = MediaPool(1)
    gate, started = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        gate.wait(30)

    async def main() -> None:
        assert await pool.run_async(int, "ff", base=16) == 255
        with pytest.raises(ValueError, match="invalid literal"):
            await pool.run_async(int, "x")
        blocker = pool.submit(block)
        await asyncio.to_thread(started.wait, 30)
        queued = asyncio.create_task(pool.run_async(int))
        await asyncio.sleep(0)
        assert pool.stats().queued == 1
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        gate.set()
        await pool.wait_async([blocker])

    asyncio.run(main())
    pool.shutdown()


def test_background_jobs_wait_for_those_in_the_foreground() -> None:
    pool = MediaPool(1)
    gate = threading.Event()
    order: list[str] = []
    pool.submit(gate.wait, 30)
    late = pool.submit_batch([partial(order.append, "background")], background=True)
    soon = pool.submit_batch([partial(order.append, "foreground")])
    gate.set()
    pool.wait([*late, *soon])
    assert order == ["foreground", "background"]
    pool.shutdown()


def test_job_tells_its_state() -> None:
    pool = MediaPool(1)
    gate, started = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        gate.wait(30)
        return "v"

    running, queued = pool.submit_batch([work, work])
    assert started.wait(30)
    assert (running.running(), running.done(), running.cancel()) == (True, False, False)
    with pytest.raises(TimeoutError):
        running.result(timeout=0.01)
    assert (queued.running(), queued.cancel(), queued.cancel()) == (False, True, True)
    assert (queued.done(), queued.cancelled()) == (True, True)
    with pytest.raises(CancelledError):
        queued.result()
    with pytest.raises(ValueError, match="not a number"):
        running.result(timeout=float("nan"))
    gate.set()
    assert (running.result(timeout=float("inf")), running.exception()) == ("v", None)
    pool.shutdown()


@pytest.mark.parametrize(
    ("setting", "threads"),
    [("1", 1), (" 3 ", 3), ("0", None), ("many", None), ("1000000", None), ("", 0)],
)
def test_threads_are_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, setting: str, threads: int | None
) -> None:
    monkeypatch.setenv("SAFELIGHT_MEDIA_THREADS", setting)
    if threads == 0:
        monkeypatch.delenv("SAFELIGHT_MEDIA_THREADS")
        threads = MediaPool().max_threads
        monkeypatch.setenv("SAFELIGHT_MEDIA_THREADS", setting)
    if threads is None:
        with pytest.raises(ValueError, match="must be"):
            MediaPool()
    else:
        assert MediaPool().max_threads == threads


def test_base_exception_of_a_decode_is_raised_as_it_is() -> None:
    cause = KeyboardInterrupt()
    jobs = submit_media_decodes([Ref("a"), Ref(cause)])
    with pytest.raises(KeyboardInterrupt) as info:
        collect_media_decodes(jobs, lambda *_: LookupError("not asked for"))
    assert info.value is not cause
    assert info.value.__cause__ is cause


def test_interrupted_collector_drains_first() -> None:
    pool = MediaPool(1)
    running, queued = Ref("a"), Ref("b")
    running.gate = threading.Event()
    jobs = submit_media_decodes([running, queued], pool)
    assert running.started.wait(30)

    def interrupt() -> None:
        time.sleep(0.2)  # until the collector waits
        os.kill(os.getpid(), signal.SIGINT)
        while not jobs[1].future.cancelled():
            time.sleep(0.001)
        assert running.gate is not None
        running.gate.set()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        collect_media_decodes(jobs)
    assert jobs[0].future.result() == "a"
    assert not queued.started.is_set()
    interrupter.join()
    pool.shutdown()


def test_jobs_given_twice_are_refused() -> None:
    jobs: list[MediaDecodeJob] = []
    with pytest.raises(TypeError, match="twice"):
        submit_media_decodes([], jobs, jobs)
