"""Fetching on loopback against the bare HTTP client, which checks nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from comparison import Comparison
from lateness import lateness_s
from safelight import DownloadBudget, MediaConnector
from safelight.media import MediaIO

# In a process of its own: it must not share the interpreter with either client.
SERVER = """
import asyncio

BODY = bytes(range(256)) * 800
HEAD = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(BODY)

async def serve(reader, writer):
    try:
        while head := await reader.readuntil(b"\\r\\n\\r\\n"):
            writer.write(HEAD)
            if head.startswith(b"GET /drip "):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.2)
            writer.write(BODY)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
BODY = bytes(range(256)) * 800
FETCHES = 64
THREADS = 4
DRIPS = 1000


class Bytes(MediaIO[bytes]):
    """Takes the payload as it is, so that only the fetch is measured."""

    def load_bytes(self, data: bytes) -> bytes:
        """Return `data` itself."""
        return data


@pytest.fixture
def url() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/"
        server.kill()


def connector(timeout_s: float) -> MediaConnector:
    return MediaConnector(
        allowed_media_domains=["127.0.0.1"],
        allow_private_addresses=True,
        timeout_s=timeout_s,
        download_budget=DownloadBudget(1 << 30),
    )


def test_fetches(compare: Comparison, url: str) -> None:
    async def ours() -> list[bytes]:
        request = connector(60)
        refs = await asyncio.gather(
            *(request.load_from_url_async(url, Bytes()) for _ in range(FETCHES))
        )
        return [ref.data for ref in refs]

    async def bare(client: httpx2.AsyncClient) -> list[bytes]:
        answers = await asyncio.gather(*(client.get(url) for _ in range(FETCHES)))
        return [answer.content for answer in answers]

    with asyncio.Runner() as runner:
        client = httpx2.AsyncClient(trust_env=False)
        compare(
            f"connector, {FETCHES} x {len(BODY) // 1000} KB on loopback",
            ours=lambda: runner.run(ours()),
            baseline=lambda: runner.run(bare(client)),
            target=0.9,
        )
        runner.run(client.aclose())


def test_fetches_from_threads(compare: Comparison, url: str) -> None:
    """Blocking calls share one loop and its connections; the client is used synchronously."""

    def ours(_: int) -> bytes:
        return connector(60).load_from_url(url, Bytes()).data

    with httpx2.Client(trust_env=False) as client, ThreadPoolExecutor(THREADS) as threads:

        def bare(_: int) -> bytes:
            return client.get(url).content

        compare(
            f"connector, {FETCHES} x {len(BODY) // 1000} KB from {THREADS} threads that block",
            ours=lambda: list(threads.map(ours, range(FETCHES))),
            baseline=lambda: list(threads.map(bare, range(FETCHES))),
            target=0.5,
        )


def test_loop_while_a_thousand_drip(benchmark: BenchmarkFixture, url: str) -> None:
    """Not a time of calls but of the loop's lateness; the bare client opens all connections."""

    async def bare() -> None:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(trust_env=False, limits=limits, timeout=60) as client:

            async def get() -> None:
                async with asyncio.timeout(3):
                    await client.get(f"{url}drip")

            results = await asyncio.gather(*(get() for _ in range(DRIPS)), return_exceptions=True)
            assert {type(result) for result in results} == {TimeoutError}

    async def ours() -> None:
        fetches = [connector(3).load_from_url_async(f"{url}drip", Bytes()) for _ in range(DRIPS)]
        results = await asyncio.gather(*fetches, return_exceptions=True)
        assert {str(result) for result in results} == {"fetch took longer than 3 s"}

    async def warm() -> None:
        await connector(60).load_from_url_async(url, Bytes())

    with asyncio.Runner() as runner:
        runner.run(warm())
        baseline_s = runner.run(lateness_s(bare))
        ours_s = benchmark.pedantic(lambda: runner.run(lateness_s(ours)), rounds=1)
    benchmark.extra_info["comparison"] = {
        "name": f"connector, loop lateness (p99) while {DRIPS:,} fetches drip",
        "ours_s": ours_s,
        "baseline_s": baseline_s,
        "ratio": baseline_s / ours_s,
        "target": 1.0,
    }
