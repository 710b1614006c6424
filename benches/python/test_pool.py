"""64 jobs at once, against the standard library's executor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from comparison import Comparison
from safelight.pool import MediaPool

COUNT = 64


def job() -> int:
    """Next to nothing, so that what is compared is the overhead of a job."""
    return 1


@pytest.fixture
def pool() -> Iterator[MediaPool]:
    pool = MediaPool(2)
    yield pool
    pool.shutdown()


def test_jobs_from_a_thread(compare: Comparison, pool: MediaPool) -> None:
    def ours() -> int:
        jobs = pool.submit_batch([job] * COUNT)
        pool.wait(jobs)
        return sum(each.result() for each in jobs)

    with ThreadPoolExecutor(2) as threads:

        def baseline() -> int:
            futures = [threads.submit(job) for _ in range(COUNT)]
            return sum(future.result() for future in futures)

        compare(
            f"pool, {COUNT} jobs from a thread, ThreadPoolExecutor",
            ours=ours,
            baseline=baseline,
            target=5.0,
        )


def test_jobs_from_asyncio(compare: Comparison, pool: MediaPool) -> None:
    loop = asyncio.new_event_loop()

    async def ask_ours() -> int:
        jobs = pool.submit_batch([job] * COUNT)
        await pool.wait_async(jobs)
        return sum(each.result() for each in jobs)

    async def ask_baseline() -> int:
        return sum([await asyncio.to_thread(job) for _ in range(COUNT)])

    compare(
        f"pool, {COUNT} jobs from asyncio, to_thread one by one",
        ours=lambda: loop.run_until_complete(ask_ours()),
        baseline=lambda: loop.run_until_complete(ask_baseline()),
        target=5.0,
    )
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_jobs_from_asyncio_together(compare: Comparison, pool: MediaPool) -> None:
    loop = asyncio.new_event_loop()

    async def ask_ours() -> int:
        jobs = pool.submit_batch([job] * COUNT)
        await pool.wait_async(jobs)
        return sum(each.result() for each in jobs)

    async def ask_baseline() -> int:
        return sum(await asyncio.gather(*(asyncio.to_thread(job) for _ in range(COUNT))))

    compare(
        f"pool, {COUNT} jobs from asyncio, to_thread gathered",
        ours=lambda: loop.run_until_complete(ask_ours()),
        baseline=lambda: loop.run_until_complete(ask_baseline()),
        target=5.0,
    )
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
