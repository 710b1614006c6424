"""Connections: shared, bounded, reused, and gone with their loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from loopback import Resolver, Server
from safelight import MediaConnector
from safelight.connector import http
from safelight.connector.network import SYSTEM_NETWORK
from safelight.media import MediaIO

pytestmark = pytest.mark.timeout(60)


class Bytes(MediaIO[bytes]):
    def load_bytes(self, data: bytes) -> bytes:
        return data


def connector(**options) -> MediaConnector:
    return MediaConnector(**{"allow_private_addresses": True, "timeout_s": 20, **options})


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


def test_threads_that_block_one_after_the_other_use_one_connection():
    with Server(lambda exchange: exchange.answer(b"x")) as server:
        for _ in range(4):
            thread = threading.Thread(target=connector().load_from_url, args=(server.url, Bytes()))
            thread.start()
            thread.join()
        assert len(server.exchanges) == 4
        assert server.connections == 1


def test_a_worker_of_the_only_media_thread_may_block_for_a_fetch():
    with Server(lambda exchange: exchange.answer(bytes(1_000_000))) as server:
        code = f"""
from safelight import ImageMediaIO, MediaConnector, NeedMoreBytes, media_pool
from safelight.media import MediaIO
class Bytes(MediaIO):
    def load_bytes(self, data): return data
    def check_prefix(self, data): return NeedMoreBytes(600_000)
connector = MediaConnector(allow_private_addresses=True)
ref = media_pool().submit(connector.load_from_url, {server.url!r}, Bytes()).result()
assert len(ref.data) == 1_000_000
"""
        environment = {**os.environ, "SAFELIGHT_MEDIA_THREADS": "1"}
        subprocess.run([sys.executable, "-c", code], check=True, timeout=50, env=environment)


def test_an_interrupted_caller_ends_its_fetch():
    with Server(lambda exchange: exchange.wait_for_the_end(30)) as server:
        code = f"""
import asyncio, signal, threading
from safelight import DownloadBudget, MediaConnector
from safelight.connector import http
from safelight.media import MediaIO
class Bytes(MediaIO):
    def load_bytes(self, data): return data
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 2.0)
try:
    connector = MediaConnector(allow_private_addresses=True, timeout_s=40)
    connector.load_from_url({server.url!r}, Bytes())
except KeyboardInterrupt:
    assert [fetcher.active for fetcher, _ in http._fetchers.values()] == [0]
    print("interrupted")
"""
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert done.stdout == "interrupted\n"
        assert not [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]


def test_a_process_exits_although_a_daemon_waits_for_a_fetch():
    with Server(lambda exchange: exchange.wait_for_the_end(30)) as server:
        code = f"""
import threading, time
from safelight import MediaConnector
from safelight.media import MediaIO
class Bytes(MediaIO):
    def load_bytes(self, data): return data
connector = MediaConnector(allow_private_addresses=True, timeout_s=60)
threading.Thread(
    target=connector.load_from_url, args=({server.url!r}, Bytes()), daemon=True
).start()
from safelight.connector import http
while not any(fetcher.active for fetcher, _ in list(http._fetchers.values())):
    time.sleep(0.05)
time.sleep(0.2)
"""
        subprocess.run(
            [sys.executable, "-c", code], check=True, timeout=25, stderr=subprocess.DEVNULL
        )
        assert len(server.exchanges) == 1


def test_a_blocking_fetch_on_an_event_loop_or_within_a_fetch_does_not_wait_for_itself():
    class Nested(Bytes):
        def check_prefix(self, data):
            assert connector().load_from_url(server.url + "inner", Bytes()).data == b"x"

    with Server(lambda exchange: exchange.answer(b"x")) as server:

        async def main():
            return connector().load_from_url(server.url, Nested()).data

        assert asyncio.run(main()) == b"x"
        assert [exchange.path for exchange in server.exchanges] == ["/", "/inner"]


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
            fetcher = await http.get_fetcher(SYSTEM_NETWORK, allow_private=True)
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
    assert not [key for key in http._fetchers if key[0].is_closed()]


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
