"""Turns and shared connections: bounded, fair, reused, and gone with their loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopback import Resolver, Server
from safelight import MediaConnector
from safelight.connector import http
from safelight.connector.network import SYSTEM_NETWORK
from safelight.connector.turns import Pace, Turns
from safelight.media import MediaIO

pytestmark = pytest.mark.timeout(60)


class Bytes(MediaIO[bytes]):
    def load_bytes(self, data: bytes) -> bytes:
        return data


def connector(**options) -> MediaConnector:
    return MediaConnector(**{"allow_private_addresses": True, "timeout_s": 20, **options})


# --- turns ---


async def take_turns(turns: Turns, jobs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Run one job per (owner, host), each taking one step of the loop; the order they began in."""
    order = []

    async def job(owner, host):
        async with turns.turn(owner, host):
            order.append((owner, host))
            await asyncio.sleep(0)

    await asyncio.gather(*(job(*each) for each in jobs))
    return order


def test_requests_are_served_in_rotation():
    jobs = [("greedy", "h")] * 100 + [("modest", "h")] * 2
    order = asyncio.run(take_turns(Turns(1, 1), jobs))
    assert len(order) == 102
    # The first was served before the modest request came; from then on they alternate.
    assert [owner for owner, _ in order[:5]].count("modest") == 2


def test_a_slow_host_does_not_hold_up_the_others():
    async def main():
        turns = Turns(10, 2)
        is_over = asyncio.Event()
        running = Counter()

        async def slow():
            async with turns.turn("request", "slow"):
                running["slow"] += 1
                await is_over.wait()

        async def quick():
            async with turns.turn("request", "quick"):
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
        turns = Turns(7, 3)
        active = Counter()
        most = Counter()

        async def job(owner, host):
            async with turns.turn(owner, host):
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


def test_cancelled_waiters_and_holders_leave_no_turn_behind():
    async def main():
        turns = Turns(2, 2)

        async def job(n):
            async with turns.turn(n % 3, "h"):
                await asyncio.sleep(0.001)

        for _ in range(20):
            tasks = [asyncio.create_task(job(n)) for n in range(30)]
            await asyncio.sleep(0.002)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert turns.active == 0
        await asyncio.wait_for(asyncio.gather(*(job(n) for n in range(10))), 5)
        assert turns.active == 0

    asyncio.run(main())


def test_waiters_of_a_full_host_let_others_pass_and_come_in_rotation():
    async def main():
        turns = Turns(3, 1)
        order = []
        go_on = {host: asyncio.Event() for host in "abc"}

        async def job(owner, host):
            async with turns.turn(owner, host):
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
        assert order[3:] == ["2b", "1a", "2a", "1a"]

    asyncio.run(main())


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 3)), max_size=30),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_whatever_is_asked_for_and_cancelled_nobody_waits_for_a_free_turn(jobs, most, per_host):
    async def main():
        turns = Turns(most, per_host)
        active = Counter()

        async def job(owner, host, steps):
            async with turns.turn(owner, host):
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
        assert turns.active == 0

    asyncio.run(main())


def test_a_crowd_begins_a_few_a_step_in_order():
    async def main():
        pace = Pace(3)
        step = 0
        begun = []

        async def count():
            nonlocal step
            while True:
                step += 1
                await asyncio.sleep(0)

        async def begin(number):
            await pace.keep()
            begun.append((step, number))

        counting = asyncio.create_task(count())
        crowd = [asyncio.create_task(begin(number)) for number in range(20)]
        crowd[5].cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        assert [number for _, number in begun] == [n for n in range(20) if n != 5]
        assert max(Counter(step for step, _ in begun).values()) <= 3
        await pace.keep()
        counting.cancel()

    asyncio.run(main())


# --- connections ---


def test_connections_are_reused_over_connectors_and_bounded_by_host():
    with Server(lambda exchange: exchange.answer(bytes(10_000))) as server:

        async def main():
            for _ in range(3):
                await asyncio.gather(
                    *(connector().load_from_url_async(server.url, Bytes()) for _ in range(100))
                )

        asyncio.run(main())
        assert len(server.exchanges) == 300
        assert server.connections <= http.MAX_CONNECTIONS_PER_HOST


def test_threads_share_connections_too():
    with Server(lambda exchange: exchange.answer(bytes(10_000))) as server:

        def work():
            for _ in range(25):
                assert len(connector().load_from_url(server.url, Bytes()).data) == 10_000

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.exchanges) == 100
        assert server.connections <= 4


def test_a_connection_that_the_server_has_closed_is_not_used_again():
    def answer(exchange):
        exchange.answer(b"x")
        exchange.is_kept_alive = False

    with Server(answer) as server:

        async def main():
            for _ in range(3):
                await connector(retries=0).load_from_url_async(server.url, Bytes())
                await asyncio.sleep(0.05)

        asyncio.run(main())
        for _ in range(3):
            connector(retries=0).load_from_url(server.url, Bytes())
            time.sleep(0.05)
        assert server.connections == 6


def test_cancelled_fetches_leave_the_pool_usable():
    def answer(exchange):
        if exchange.path == "/slow":
            exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
            exchange.wait_for_the_end(20)
        else:
            exchange.answer(b"x")

    with Server(answer) as server:

        async def main():
            for _ in range(5):
                tasks = [
                    asyncio.create_task(
                        connector().load_from_url_async(server.url + "slow", Bytes())
                    )
                    for _ in range(40)
                ]
                await asyncio.sleep(0.05)
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(result, asyncio.CancelledError) for result in results)
                ref = await connector().load_from_url_async(server.url, Bytes())
                assert ref.data == b"x"

        asyncio.run(main())


def test_a_thousand_dripping_fetches_end_at_their_deadline():
    def answer(exchange):
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not exchange.wait_for_the_end(0.2):
            exchange.send(b"x")

    with Server(answer) as server:

        async def main():
            fetcher = await http.get_async_fetcher(SYSTEM_NETWORK, allow_private=True)
            most = 0

            async def watch():
                nonlocal most
                while True:
                    most = max(most, fetcher.active)
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            shared = connector(timeout_s=1)
            results = await asyncio.gather(
                *(shared.load_from_url_async(server.url, Bytes()) for _ in range(1000)),
                return_exceptions=True,
            )
            watching.cancel()
            assert most == http.MAX_CONNECTIONS_PER_HOST
            assert fetcher.active == 0
            return results

        assert {str(result) for result in asyncio.run(main())} == {"fetch took longer than 1 s"}


def test_each_loop_has_connections_of_its_own():
    with Server(lambda exchange: exchange.answer(b"x")) as server:

        def work():
            for _ in range(3):
                asyncio.run(connector().load_from_url_async(server.url, Bytes()))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.exchanges) == 9
    assert http._shared.by_loop == {}


def test_a_loop_that_ends_closes_its_connections():
    with Server(lambda exchange: exchange.answer(b"x")) as server:
        asyncio.run(connector().load_from_url_async(server.url, Bytes()))
        deadline = time.monotonic() + 10
        while server._open and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not server._open


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own_connections():
    with Server(lambda exchange: exchange.answer(str(exchange.path).encode())) as server:
        code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from safelight import MediaConnector
from safelight.media import MediaIO
class Bytes(MediaIO):
    def load_bytes(self, data): return data
def load(path):
    connector = MediaConnector(allow_private_addresses=True, retries=0)
    return connector.load_from_url({server.url!r} + path, Bytes()).data
assert load("parent") == b"/parent"
children = []
for n in range(3):
    child = os.fork()
    if not child:
        ok = all(load(f"child{{n}}") == f"/child{{n}}".encode() for _ in range(20))
        os._exit(0 if ok else 1)
    children.append(child)
assert all(load("parent") == b"/parent" for _ in range(20))
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
"""
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=50)
        assert server.connections == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_parent_s_connections_open():
    with Server(lambda exchange: exchange.answer(b"x")) as server:
        code = f"""
import asyncio, os, signal
from safelight import MediaConnector
from safelight.media import MediaIO
class Bytes(MediaIO):
    def load_bytes(self, data): return data
connector = MediaConnector(allow_private_addresses=True)
async def main():
    connector.load_from_url({server.url!r}, Bytes())
    await connector.load_from_url_async({server.url!r}, Bytes())
    child = os.fork()
    if not child:
        signal.alarm(30)
        os.close(1)
        os.close(2)
        signal.pause()
    return child
print(asyncio.run(main()), flush=True)
"""
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        )
        child = int(done.stdout)
        try:
            deadline = time.monotonic() + 10
            while server._open and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not server._open
        finally:
            os.kill(child, signal.SIGKILL)
        assert len(server.exchanges) == 2


def test_a_process_exits_quietly_with_connections_open():
    with Server(lambda exchange: exchange.answer(b"x")) as server:
        code = f"""
import asyncio
from safelight import MediaConnector
from safelight.media import MediaIO
class Bytes(MediaIO):
    def load_bytes(self, data): return data
connector = MediaConnector(allow_private_addresses=True)
connector.load_from_url({server.url!r}, Bytes())
asyncio.run(connector.load_from_url_async({server.url!r}, Bytes()))
loop = asyncio.new_event_loop()
loop.run_until_complete(connector.load_from_url_async({server.url!r}, Bytes()))
loop.run_until_complete(loop.shutdown_asyncgens())
loop.close()
"""
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        )
    # In its debug mode the loop tells of slow steps, which on a busy machine any step may be.
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert lines == []


def test_names_are_resolved_once_for_a_connection_that_is_kept():
    with Server(lambda exchange: exchange.answer(b"x")) as server:
        network = Resolver({"a.example": ["127.0.0.1"]})

        async def main():
            for _ in range(5):
                url = f"http://a.example:{server.port}/"
                await connector(network=network).load_from_url_async(url, Bytes())

        asyncio.run(main())
    assert network.resolved == ["a.example"]
