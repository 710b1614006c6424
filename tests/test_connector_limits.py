"""Who fetches when: limits, fairness between requests, and the pace of a crowd."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safelight.connector.limits import Limits, Pace

pytestmark = pytest.mark.timeout(60)


async def take_turns(limits: Limits, jobs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Run one job per (owner, host), each one step of the loop; the order they started in."""
    order = []

    async def job(owner, host):
        async with limits.slot(owner, host):
            order.append((owner, host))
            await asyncio.sleep(0)

    await asyncio.gather(*(job(*each) for each in jobs))
    return order


def test_requests_are_served_in_rotation():
    jobs = [("greedy", "h")] * 100 + [("modest", "h")] * 2
    order = asyncio.run(take_turns(Limits(1, 1), jobs))
    assert len(order) == 102
    # The first was served before the modest request came; from then on they alternate.
    assert [owner for owner, _ in order[:5]].count("modest") == 2


def test_a_slow_host_does_not_hold_up_the_others():
    async def main():
        limits = Limits(10, 2)
        is_over = asyncio.Event()
        running = Counter()

        async def slow():
            async with limits.slot("request", "slow"):
                running["slow"] += 1
                await is_over.wait()

        async def quick():
            async with limits.slot("request", "quick"):
                running["quick"] += 1

        tasks = [asyncio.create_task(slow()) for _ in range(20)]
        await asyncio.gather(*(quick() for _ in range(20)))
        assert running == {"slow": 2, "quick": 20}
        is_over.set()
        await asyncio.gather(*tasks)
        assert running["slow"] == 20

    asyncio.run(main())


def test_no_more_than_the_limits_at_once():
    async def main():
        limits = Limits(7, 3)
        active = Counter()
        most = Counter()

        async def job(owner, host):
            async with limits.slot(owner, host):
                for key in ("all", host):
                    active[key] += 1
                    most[key] = max(most[key], active[key])
                await asyncio.sleep(0.001)
                for key in ("all", host):
                    active[key] -= 1

        await asyncio.gather(*(job(n % 5, f"h{n % 4}") for n in range(200)))
        assert most["all"] == 7
        assert all(most[f"h{n}"] <= 3 for n in range(4))

    asyncio.run(main())


def test_cancelled_waiters_and_holders_leave_no_slot_behind():
    async def main():
        limits = Limits(2, 2)

        async def job(n):
            async with limits.slot(n % 3, "h"):
                await asyncio.sleep(0.001)

        for _ in range(20):
            tasks = [asyncio.create_task(job(n)) for n in range(30)]
            await asyncio.sleep(0.002)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert limits.active == 0
        await asyncio.wait_for(asyncio.gather(*(job(n) for n in range(10))), 5)
        assert limits.active == 0

    asyncio.run(main())


def test_waiters_of_a_full_host_let_others_pass_and_come_in_rotation():
    async def main():
        limits = Limits(3, 1)
        order = []
        go_on = {host: asyncio.Event() for host in "abc"}

        async def job(owner, host):
            async with limits.slot(owner, host):
                order.append(owner + host)
                await go_on[host].wait()

        jobs = ["1a", "1a", "1a", "2a", "1b", "2b", "3c"]
        tasks = [asyncio.create_task(job(*each)) for each in jobs]
        await asyncio.sleep(0)
        assert order == ["1a", "1b", "3c"]
        for host in "bac":
            go_on[host].set()
            for _ in range(10):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order[3:] == ["2b", "2a", "1a", "1a"]

    asyncio.run(main())


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 3)), max_size=30),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_whatever_is_asked_for_and_cancelled_nobody_waits_for_a_free_slot(jobs, most, per_host):
    async def main():
        limits = Limits(most, per_host)
        active = Counter()

        async def job(owner, host, steps):
            async with limits.slot(owner, host):
                active[host] += 1
                assert active[host] <= per_host
                assert active.total() <= most
                try:
                    for _ in range(steps):
                        await asyncio.sleep(0)
                finally:
                    active[host] -= 1

        tasks = [asyncio.create_task(job(*each)) for each in jobs]
        for number, task in enumerate(tasks):
            if number % 4 == 3:
                await asyncio.sleep(0)
                task.cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert all(result is None or type(result) is asyncio.CancelledError for result in results)
        assert limits.active == 0

    asyncio.run(main())


def test_a_crowd_starts_a_few_a_step_in_order():
    async def main():
        pace = Pace(3)
        step = 0
        started = []

        async def count():
            nonlocal step
            while True:
                step += 1
                await asyncio.sleep(0)

        async def start(number):
            await pace.keep()
            started.append((step, number))

        counting = asyncio.create_task(count())
        crowd = [asyncio.create_task(start(number)) for number in range(20)]
        crowd[5].cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        assert [number for _, number in started] == [n for n in range(20) if n != 5]
        assert max(Counter(step for step, _ in started).values()) <= 3
        await pace.keep()
        counting.cancel()

    asyncio.run(main())
