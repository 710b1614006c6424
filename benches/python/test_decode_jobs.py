"""Decodes as jobs of the pool: what they cost the interpreter, the loop and the request."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import statistics
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import cachebox
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pytest_benchmark.fixture import BenchmarkFixture

from comparison import Comparison
from lateness import lateness_s
from pictures import ONE_MP, TWELVE_MP, encode, photo
from safelight import MediaCache, MediaConnector, collect_media_decodes, submit_media_decodes
from safelight.decodes import collect_media_decodes_async
from safelight.media import ImageMediaIO
from safelight.pool import MediaPool

Array = npt.NDArray[np.uint8]

JOBS = 64
# What a decode may hold the interpreter.
ATTACHED_S = 0.0002


def unequal(data: bytes, count: int) -> list[bytes]:
    """The same picture with something behind it, so that no two refs share a decode."""
    return [data + bytes([number]) for number in range(count)]


@pytest.fixture
def pool() -> Iterator[MediaPool]:
    pool = MediaPool(2)
    yield pool
    pool.shutdown()


@pytest.mark.parametrize(
    ("name", "size", "format"),
    [("jpeg 1 MP", ONE_MP, "JPEG"), ("jpeg 12 MP", TWELVE_MP, "JPEG"), ("png 1 MP", ONE_MP, "PNG")],
)
def test_attached_time(
    benchmark: BenchmarkFixture, pool: MediaPool, name: str, size: tuple[int, int], format: str
) -> None:
    """Not a time of calls but what the pool counted, against what is allowed."""
    data = encode(photo(size), format)
    media_io = ImageMediaIO()

    def decode() -> float:
        refs = [media_io.load_bytes_ref(each) for each in unequal(data, 16)]
        before = pool.stats().attached_ns
        collect_media_decodes(submit_media_decodes(refs, pool))
        return (pool.stats().attached_ns - before) / len(refs) / 1e9

    decode()
    ours_s = benchmark.pedantic(decode, rounds=1)
    benchmark.extra_info["comparison"] = {
        "name": f"decode, {name}, attached to the interpreter, 0.2 ms",
        "ours_s": ours_s,
        "baseline_s": ATTACHED_S,
        "ratio": ATTACHED_S / ours_s,
        "target": 1.0,
    }


def test_two_threads(compare: Comparison, pool: MediaPool) -> None:
    data = encode(photo(ONE_MP), "PNG")
    media_io = ImageMediaIO(output="numpy")
    refs: list[Any] = []

    def make_refs() -> None:
        refs[:] = [media_io.load_bytes_ref(each) for each in unequal(data, 48)]

    def decode(pool: MediaPool) -> list[int]:
        return [each.nbytes for each in collect_media_decodes(submit_media_decodes(refs, pool))]

    single = MediaPool(1)
    compare(
        "decode, png photo x 48, two threads against one",
        ours=lambda: decode(pool),
        baseline=lambda: decode(single),
        setup=make_refs,
        target=1.9,
    )
    single.shutdown()


@pytest.mark.parametrize(("baseline", "target"), [("idle", 1 / 3), ("Pillow", 5.0)])
def test_loop_while_two_threads_decode(
    benchmark: BenchmarkFixture, pool: MediaPool, baseline: str, target: float
) -> None:
    """Not a time of calls but of the loop's lateness."""
    data = encode(photo(TWELVE_MP), "JPEG", quality=85)

    def decoding(decoder: Any) -> Callable[[], Awaitable[Any]]:
        media_io = ImageMediaIO(decoder=decoder)
        # Made beforehand: deriving their keys is not what is looked at.
        batches = [[media_io.load_bytes_ref(each) for each in unequal(data, 4)] for _ in range(5)]

        async def decode() -> None:
            for refs in batches:
                await collect_media_decodes_async(submit_media_decodes(refs, pool))
                # As a processor does, on a thread of its own.
                await pool.run_async(refs.clear)

        return decode

    async def idle() -> None:
        await asyncio.sleep(1)

    with asyncio.Runner() as runner:

        def median_s(make: Callable[[], Callable[[], Awaitable[Any]]]) -> float:
            return statistics.median(runner.run(lateness_s(make())) for _ in range(3))

        baseline_s = median_s(
            lambda: idle if baseline == "idle" else decoding("pillow"),
        )
        ours_s = benchmark.pedantic(median_s, args=(lambda: decoding("native"),), rounds=1)
    benchmark.extra_info["comparison"] = {
        "name": f"decode, loop lateness (p99) while two threads decode 12 MP, {baseline}",
        "ours_s": ours_s,
        "baseline_s": baseline_s,
        "ratio": baseline_s / ours_s,
        "target": target,
    }


def test_dispatch_from_asyncio(compare: Comparison, pool: MediaPool) -> None:
    """Images of one pixel, so that what is compared is the overhead of a job."""
    data = encode(photo((1, 1)), "PNG")
    media_io = ImageMediaIO(output="numpy")
    loop = asyncio.new_event_loop()
    refs: list[Any] = []

    def make_refs() -> None:
        refs[:] = [media_io.load_bytes_ref(each) for each in unequal(data, JOBS)]

    async def ask_ours() -> list[Any]:
        return await collect_media_decodes_async(submit_media_decodes(refs, pool))

    async def ask_baseline() -> list[Any]:
        return [await asyncio.to_thread(ref.decode) for ref in refs]

    compare(
        f"decode, {JOBS} tiny images from asyncio, to_thread",
        ours=lambda: loop.run_until_complete(ask_ours()),
        baseline=lambda: loop.run_until_complete(ask_baseline()),
        equal=np.array_equal,
        setup=make_refs,
        target=9.0,
    )
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


IMAGES, PARTS = 16, 64
PREFIX = "data:image/jpeg;base64,"


def urls() -> list[str]:
    """As a request brings them: equal ones are different objects."""
    source = np.random.default_rng(5)
    texts = []
    for _ in range(IMAGES):
        grain = source.normal(0, 3, (896, 1152, 3))
        pixels = (np.asarray(photo(ONE_MP)) + grain).clip(0, 255).astype(np.uint8)
        payload = encode(Image.fromarray(pixels), "JPEG", quality=85)
        texts.append(PREFIX + base64.b64encode(payload).decode())
    return [texts[number % IMAGES][:-1] + texts[number % IMAGES][-1] for number in range(PARTS)]


class _ByHand:
    """The best parts there are, put together: base64, digest, cache and decoder, on two threads."""

    def __init__(self) -> None:
        self.decode_jpeg = pytest.importorskip("simplejpeg").decode_jpeg
        self.b64decode = pytest.importorskip("pybase64").b64decode
        self.threads = ThreadPoolExecutor(2)
        self.forget()

    def forget(self) -> None:
        self.cache: cachebox.LRUCache[bytes, Array] = cachebox.LRUCache(1 << 10)

    def load(self, url: str) -> tuple[bytes, bytes]:
        payload = self.b64decode(url[len(PREFIX) :], validate=True)
        return hashlib.sha256(payload).digest(), payload

    def decode(self, payload: bytes) -> Array:
        array: Array = self.decode_jpeg(payload, "RGB")
        return array

    def serve(self, urls: list[str]) -> list[Array]:
        loaded = list(self.threads.map(self.load, urls))
        missing = {key: payload for key, payload in loaded if key not in self.cache}
        arrays = self.threads.map(self.decode, missing.values())
        for key, array in zip(missing, arrays, strict=True):
            self.cache.insert(key, array)
        return [self.cache[key] for key, _ in loaded]


class _Safelight:
    """The same with what is here."""

    def __init__(self, pool: MediaPool) -> None:
        self.media_io = ImageMediaIO(output="numpy")
        self.pool = pool
        self.forget()

    def forget(self) -> None:
        self.cache = MediaCache(1 << 30)

    def serve(self, urls: list[str]) -> list[Array]:
        refs: list[Any] = MediaConnector().load_from_urls(urls, self.media_io)
        missing = {ref.key: ref for ref in refs if ref.key not in self.cache}
        arrays = collect_media_decodes(submit_media_decodes(missing.values(), self.pool))
        for key, array in zip(missing, arrays, strict=True):
            self.cache.put(key, array, array.nbytes)
        return [self.cache.get(ref.key) for ref in refs]


@contextmanager
def serving() -> Iterator[tuple[_Safelight, _ByHand, list[str]]]:
    pool, by_hand = MediaPool(2), _ByHand()
    yield _Safelight(pool), by_hand, urls()
    by_hand.threads.shutdown()
    pool.shutdown()


@pytest.mark.parametrize(("name", "target"), [("cold", 1.25), ("warm", 1.9)])
def test_request_by_hand(compare: Comparison, name: str, target: float) -> None:
    with serving() as (ours, by_hand, texts):

        def forget() -> None:
            ours.forget()
            by_hand.forget()

        compare(
            f"decode, {PARTS} data: URLs, {IMAGES} images, {name}, the best parts by hand",
            ours=lambda: ours.serve(texts),
            baseline=lambda: by_hand.serve(texts),
            equal=np.array_equal,
            setup=forget if name == "cold" else None,
            target=target,
        )
