"""Decodes as jobs of the pool: the same media as `decode` gives, made once, whoever asks."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
from PIL import Image

from safelight import decodes
from safelight._safelight import DecodeRequest, Pixels
from safelight.budget import DecodedBudget
from safelight.cache import MediaCache
from safelight.decodes import (
    MediaDecodeJob,
    collect_media_decodes,
    submit_media_decodes,
    submit_media_decodes_async,
    try_submit_media_decodes,
)
from safelight.errors import DecodeError, LimitError, ReleasedError, UnsupportedMediaError
from safelight.media import ImageMediaIO
from safelight.pool import MediaPool
from safelight.ref import MediaRef

TIMEOUT = 30


def encode(image_format: str = "PNG", side: int = 40, mode: str = "RGB", **options: Any) -> bytes:
    noise = np.random.default_rng(side).integers(0, 256, (side, side, 4), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise, "RGBA").convert(mode).save(file, image_format, **options)
    return file.getvalue()


@pytest.fixture
def pool() -> Iterator[MediaPool]:
    pool = MediaPool(1)
    yield pool
    pool.shutdown(cancel_futures=True)


@pytest.fixture
def busy(pool: MediaPool) -> Iterator[Callable[[], None]]:
    """The pool's one thread is occupied until this is called."""
    started, gate = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        gate.wait(TIMEOUT)

    pool.submit(wait)
    assert started.wait(TIMEOUT)
    yield gate.set
    gate.set()


class Native:
    """A decoder that native code serves, which counts what is made and waits for `gate`."""

    scope = object()

    def __init__(self, data: bytes, *, fails: BaseException | None = None) -> None:
        self.data = data
        self.fails = fails
        self.made = 0
        self.started, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self) -> Any:
        raise AssertionError("native code serves it")

    def native_request(self) -> DecodeRequest | None:
        return DecodeRequest("RGB")

    def finish(self, pixels: Pixels | None) -> Any:
        self.made += 1
        self.started.set()
        assert self.gate.wait(TIMEOUT)
        if self.fails is not None:
            raise self.fails
        return np.asarray(pixels)

    def adopt(self, media: Any) -> Any:
        return media.copy()


@pytest.mark.parametrize("output", ["pil", "numpy"])
@pytest.mark.parametrize(
    ("image_format", "mode"),
    [("PNG", "RGBA"), ("JPEG", "L"), ("WEBP", "RGB"), ("GIF", "P"), ("TIFF", "CMYK")],
)
def test_job_makes_what_decode_makes(
    pool: MediaPool, output: Any, image_format: str, mode: str
) -> None:
    data = encode(image_format, mode=mode)
    media_io = ImageMediaIO(output=output)
    refs = [media_io.load_bytes_ref(data) for _ in range(3)]
    media = collect_media_decodes(submit_media_decodes(refs[1:], pool))
    expected = np.asarray(media_io.load_bytes(data))
    for ref, made in zip(refs[1:], media, strict=True):
        assert ref.is_decoded
        assert ref.decode() is made
        assert np.array_equal(np.asarray(made), expected)


def test_what_native_code_declines_is_decoded_all_the_same(pool: MediaPool) -> None:
    data = encode("TIFF", compression="jpeg")
    ref = ImageMediaIO(output="numpy").load_bytes_ref(data)
    (media,) = collect_media_decodes(submit_media_decodes([ref], pool))
    assert np.array_equal(media, ImageMediaIO(output="numpy", decoder="pillow").load_bytes(data))


@pytest.mark.parametrize("way", ["callable", "pillow", "mode", "map", "released", "decoded"])
def test_every_ref_has_a_job(pool: MediaPool, way: str) -> None:
    data = encode()
    media_io = ImageMediaIO(
        "CMYK" if way == "mode" else "RGB", decoder="pillow" if way == "pillow" else "native"
    )
    ref: MediaRef[Any] = media_io.load_bytes_ref(data)
    if way == "callable":
        ref = MediaRef(lambda: 1, b"")
    if way == "map":
        ref = ref.map(lambda image: image.size)
    if way == "released":
        ref.release()
    if way == "decoded":
        ref.decode()
    (job,) = pool.submit_batch([ref.decode_job()])
    if way == "released":
        assert isinstance(job.exception(TIMEOUT), ReleasedError)
    else:
        assert job.result(TIMEOUT) is ref.decode()


def test_refusals_are_those_of_decode(pool: MediaPool) -> None:
    damaged = encode("PNG")[:-40]
    budget = DecodedBudget(2 * 40 * 40 * 4)
    media_io = ImageMediaIO(decoded_budget=budget)
    served, refunded = (media_io.load_bytes_ref(encode()) for _ in range(2))
    refunded.refund()
    # What the refund gave back is taken by another, so decoding after all finds no room.
    budget.charge(40 * 40 * 4)
    refs = [
        served,
        ImageMediaIO().load_bytes_ref(damaged),
        ImageMediaIO(formats=["JPEG"]).load_bytes_ref(encode()),
        refunded,
    ]
    jobs = submit_media_decodes(refs, pool)
    MediaPool.wait([job.future for job in jobs])  # type: ignore[misc]
    errors = [job.future.exception() for job in jobs]
    expected = [type(None), DecodeError, UnsupportedMediaError, LimitError]
    assert [type(error) for error in errors] == expected
    for ref, error in zip(refs[1:], errors[1:], strict=True):
        with pytest.raises(type(error)) as caught:  # type: ignore[arg-type]
            ref.decode()
        assert str(caught.value) == str(error)


def test_thread_does_not_wait_for_a_job_that_has_not_started(
    pool: MediaPool, busy: Callable[[], None]
) -> None:
    decoder = Native(encode())
    ref: MediaRef[Any] = MediaRef(decoder, decoder.data)
    (job,) = submit_media_decodes([ref], pool)
    media = ref.fork().decode()
    busy()
    assert job.future.result(TIMEOUT) is media
    assert decoder.made == 1


def test_job_on_the_only_thread_decodes_what_is_queued_behind_it(
    pool: MediaPool, busy: Callable[[], None]
) -> None:
    ref = ImageMediaIO().load_bytes_ref(encode())
    asks = pool.submit(ref.decode)
    (job,) = submit_media_decodes([ref], pool)
    busy()
    assert asks.result(TIMEOUT) is job.future.result(TIMEOUT)


def test_all_who_ask_at_once_get_one_media() -> None:
    pool = MediaPool(2)
    media_io = ImageMediaIO()
    data = encode(side=300)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(30):
            ref = media_io.load_bytes_ref(data)
            asked = [threads.submit(ref.fork().decode) for _ in range(4)]
            jobs = submit_media_decodes([ref, ref.fork()], pool)
            media = [future.result(TIMEOUT) for future in asked]
            media += collect_media_decodes(jobs)
            assert len({id(each) for each in media}) == 1
    pool.shutdown()


def test_cancelled_job_stops_and_decode_tries_again() -> None:
    pool = MediaPool(1)
    data = encode("PNG", side=3000, compress_level=1)
    expected = ImageMediaIO(output="numpy").load_bytes(data)
    was_stopped = False
    while not was_stopped:
        ref = ImageMediaIO(output="numpy").load_bytes_ref(data)
        (job,) = submit_media_decodes([ref], pool)
        while not job.future.running():
            pass
        withdrawn = job.future.cancel()
        pool.wait([job.future])  # type: ignore[list-item]
        was_stopped = job.future.cancelled() and not withdrawn
        if job.future.cancelled():
            with pytest.raises(CancelledError):
                job.future.result()
            assert not ref.is_decoded
            assert not job.future.running()
        assert np.array_equal(ref.decode(), expected)
    pool.shutdown()


def test_small_image_passes_a_large_one(pool: MediaPool, busy: Callable[[], None]) -> None:
    large = encode("PNG", side=4200, mode="L", compress_level=1)
    media_io = ImageMediaIO(output="numpy")
    refs = [media_io.load_bytes_ref(data) for data in (large, encode(), encode("JPEG"))]
    jobs = submit_media_decodes(refs, pool)
    busy()
    ended = list(MediaPool.as_completed([job.future for job in jobs]))  # type: ignore[misc]
    assert ended == [jobs[1].future, jobs[2].future, jobs[0].future]


def test_payload_is_let_go_of_after_the_decode(pool: MediaPool) -> None:
    import sys

    data = bytes(bytearray(encode()))
    before = sys.getrefcount(data)
    ref = ImageMediaIO().load_bytes_ref(data)
    jobs = submit_media_decodes([ref], pool)
    collect_media_decodes(jobs)
    ref.release()
    del jobs
    assert sys.getrefcount(data) == before


def test_time_attached_is_counted(pool: MediaPool) -> None:
    media_io = ImageMediaIO()
    refs = [media_io.load_bytes_ref(encode()) for _ in range(8)]
    before = pool.stats().attached_ns
    collect_media_decodes(submit_media_decodes(refs, pool))
    pool.shutdown()
    assert pool.stats().attached_ns > before


@pytest.mark.timeout(60)
def test_decode_that_finds_the_queue_full_leaves_the_interpreter_to_others() -> None:
    pool = MediaPool(1, max_queue=1)
    data = encode("PNG", side=3000, mode="RGB", compress_level=1)
    # With something behind the image, so that no two are equal.
    refs = [ImageMediaIO(output="numpy").load_bytes_ref(data + bytes([n])) for n in range(4)]
    before = pool.stats().attached_ns
    started = time.perf_counter_ns()
    jobs = pool.submit(submit_media_decodes, refs, pool).result(TIMEOUT)
    spent = time.perf_counter_ns() - started
    assert pool.stats().inlined == 3
    collect_media_decodes(jobs)
    pool.shutdown()
    assert pool.stats().attached_ns - before < spent / 2


def test_withdrawn_decode_gives_its_budget_back(pool: MediaPool, busy: Callable[[], None]) -> None:
    budget = DecodedBudget(40 * 40 * 4)
    ref = ImageMediaIO(decoded_budget=budget).load_bytes_ref(encode())
    (job,) = submit_media_decodes([ref], pool)
    assert job.future.cancel()
    ref.refund()
    assert budget.used_bytes == 0
    busy()
    collect_media_decodes(submit_media_decodes([ref], pool))
    ref.refund()
    assert budget.used_bytes == 40 * 40 * 4


class Sized(MediaRef[Any]):
    """A ref whose decode says the size, or that there is none."""

    def decode(self) -> Any:
        try:
            return super().decode().shape
        except DecodeError:
            return None


@pytest.mark.parametrize("way", ["itself", "fork", "twice", "map", "native", "patched", "fails"])
def test_what_overrides_decode_is_asked(
    pool: MediaPool, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    decoder = Native(encode(), fails=DecodeError("no") if way == "fails" else None)
    ref: MediaRef[Any] = Sized(decoder, decoder.data)
    expected: Any = (40, 40, 3)
    if way == "fork":
        ref = ref.fork()
        assert type(ref) is Sized
    if way == "map":
        ref, expected = ref.map(len), 3
    if way == "patched":
        ref, expected = MediaRef(decoder, decoder.data), "patched"
        monkeypatch.setattr(MediaRef, "decode", lambda self: "patched")
    if way == "fails":
        expected = None
    refs = [ref, ref.fork()] if way == "twice" else [ref]
    assert collect_media_decodes(submit_media_decodes(refs, pool)) == [expected] * len(refs)
    assert decoder.made == 1


class Asking:
    """A decoder that native code declines, and which then asks for its own media."""

    ref: MediaRef[Any]
    data = b"no image"

    def __call__(self) -> Any:
        return self.ref.decode()

    def native_request(self) -> DecodeRequest:
        return DecodeRequest()

    def finish(self, pixels: Pixels | None) -> Any:
        assert pixels is None
        return self()


@pytest.mark.timeout(30)
def test_job_whose_decoder_asks_for_its_own_media_is_refused(pool: MediaPool) -> None:
    decoder = Asking()
    decoder.ref = MediaRef(decoder, b"")
    (job,) = submit_media_decodes([decoder.ref], pool)
    error = job.future.exception(TIMEOUT)
    assert isinstance(error, RuntimeError)
    assert "its own" in str(error)


# --- equal refs ---


@pytest.mark.timeout(60)
@pytest.mark.parametrize("leaver", [False, True])
def test_equal_refs_share_a_decode_under_way_and_copy_what_it_makes(leaver: bool) -> None:
    pool = MediaPool(2)
    data = encode()
    decoders = [Native(data) for _ in range(6)]
    refs = [MediaRef(decoder, data) for decoder in decoders]
    decoders[0].gate.clear()
    (first,) = submit_media_decodes(refs[:1], pool)
    assert decoders[0].started.wait(TIMEOUT)
    jobs = submit_media_decodes([*refs[1:4], refs[1].fork()], pool)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(ref.decode) for ref in refs[4:]]
        # Both threads of the pool are free for others meanwhile, but for the one that decodes.
        assert pool.submit(lambda: "free").result(TIMEOUT) == "free"
        if leaver:
            assert jobs[0].future.cancel()
            assert jobs[0].future.cancelled()
            first.future.cancel()
        while pool.stats().queued or len(asked) < 2:
            time.sleep(0.001)
        time.sleep(0.05)
        decoders[0].gate.set()
        media = [future.result(TIMEOUT) for future in asked]
    media += [job.future.result(TIMEOUT) for job in jobs[leaver:]]
    media.append(refs[0].decode())
    assert [decoder.made for decoder in decoders] == [1, 0, 0, 0, 0, 0]
    # Forks share, equal refs do not: what one writes, no other sees.
    assert len({id(each) for each in media}) == 6
    expected = media[-1].copy()
    for each in media:
        each[:] = 0
        others = [other for other in media if other is not each and other.any()]
        assert all(np.array_equal(other, expected) for other in others)
    pool.shutdown()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("output", ["pil", "numpy", "torch"])
def test_images_of_equal_refs_are_decoded_together_and_apart(output: Any) -> None:
    if output == "torch":
        pytest.importorskip("torch")
    pool = MediaPool(2)
    data = encode(side=700)
    expected = np.asarray(ImageMediaIO(output="numpy").load_bytes(data))
    for _ in range(10):
        refs = [ImageMediaIO(output=output).load_bytes_ref(data) for _ in range(4)]
        media = collect_media_decodes(submit_media_decodes(refs, pool))
        assert len({id(each) for each in media}) == 4
        assert all(np.array_equal(np.asarray(each), expected) for each in media)
    pool.shutdown()


@pytest.mark.timeout(60)
def test_failure_of_the_bytes_reaches_equal_refs_and_a_limit_does_not(
    pool: MediaPool, busy: Callable[[], None]
) -> None:
    data = encode()
    failing = [Native(b"x", fails=DecodeError("damaged")) for _ in range(2)]
    limited, free = Native(data, fails=LimitError("over")), Native(data)
    refs = [MediaRef(decoder, decoder.data) for decoder in (*failing, limited)]
    # What the other is refused for is not asked of this one, which is called as a whole.
    free.__class__ = type("Whole", (Native,), {"__call__": lambda self: "whole"})
    jobs = submit_media_decodes([*refs, MediaRef(free, data)], pool)
    busy()
    errors = [job.future.exception(TIMEOUT) for job in jobs[:3]]
    assert [type(error) for error in errors] == [DecodeError, DecodeError, LimitError]
    assert errors[0] is not errors[1]
    assert jobs[3].future.result(TIMEOUT) == "whole"
    assert [decoder.made for decoder in failing] == [1, 0]


def test_own_limit_holds_whatever_an_equal_ref_has_under_way(
    pool: MediaPool, busy: Callable[[], None]
) -> None:
    data = encode()
    budget = DecodedBudget(40 * 40 * 4)
    poor = ImageMediaIO(decoded_budget=budget).load_bytes_ref(data)
    poor.refund()
    budget.charge(40)
    jobs = submit_media_decodes([ImageMediaIO().load_bytes_ref(data), poor], pool)
    busy()
    assert jobs[0].future.result(TIMEOUT).size == (40, 40)
    assert isinstance(jobs[1].future.exception(TIMEOUT), LimitError)


# --- leaving ---


def test_job_that_leaves_takes_nothing_from_those_who_stay(
    pool: MediaPool, busy: Callable[[], None]
) -> None:
    decoder = Native(encode())
    ref: MediaRef[Any] = MediaRef(decoder, decoder.data)
    leaves, stays = submit_media_decodes([ref, ref.fork()], pool)
    assert leaves.future.cancel()
    assert leaves.future.cancelled()
    busy()
    assert stays.future.result(TIMEOUT) is ref.decode()
    assert decoder.made == 1


def test_last_to_leave_withdraws_and_who_comes_later_decodes(
    pool: MediaPool, busy: Callable[[], None]
) -> None:
    decoder = Native(encode())
    ref: MediaRef[Any] = MediaRef(decoder, decoder.data)
    jobs = submit_media_decodes([ref, ref.fork()], pool)
    assert all(job.future.cancel() for job in jobs)
    (late,) = submit_media_decodes([ref], pool)
    busy()
    assert late.future.result(TIMEOUT) is ref.decode()
    assert decoder.made == 1


# --- room ---


@pytest.mark.timeout(60)
def test_trying_to_submit_queues_what_has_room_and_gives_back_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = MediaPool(1, max_queue=2)
    monkeypatch.setattr(decodes, "media_pool", lambda: pool)
    gate, started = threading.Event(), threading.Event()
    pool.submit(lambda: (started.set(), gate.wait(TIMEOUT)))
    assert started.wait(TIMEOUT)
    refs = [MediaRef(lambda number=number: number, b"") for number in range(7)]
    jobs: list[MediaDecodeJob] = []
    rest = try_submit_media_decodes([("image", 9 - n, ref) for n, ref in enumerate(refs)], jobs)
    assert [(job.modality, job.original_index) for job in jobs] == [("image", 9), ("image", 8)]
    assert [item[1] for item in rest] == [7, 6, 5, 4, 3]  # type: ignore[index]

    async def main() -> None:
        submitting = asyncio.create_task(submit_media_decodes_async(rest, jobs))
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.001)
            ticks += 1
        assert not submitting.done()
        gate.set()
        await asyncio.wait_for(submitting, TIMEOUT)

    asyncio.run(main())
    assert collect_media_decodes(jobs) == list(range(7))
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        try_submit_media_decodes([MediaRef(lambda: 1, b"")], jobs)
    assert len(jobs) == 7 or jobs[-1].future.cancelled()


@pytest.mark.timeout(60)
def test_interrupted_submission_keeps_what_runs_and_withdraws_the_rest() -> None:
    pool = MediaPool(1, max_queue=1)
    running = Native(encode())
    running.gate.clear()
    refs = [MediaRef(running, running.data)]
    refs += [MediaRef(lambda: "never", b"") for _ in range(5)]
    jobs: list[MediaDecodeJob] = []

    def interrupt() -> None:
        assert running.started.wait(TIMEOUT)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        submit_media_decodes(refs, pool, jobs)
    interrupter.join(TIMEOUT)
    assert [job.future.cancelled() for job in jobs] == [False] + [True] * 5
    running.gate.set()
    assert jobs[0].future.result(TIMEOUT) is refs[0].decode()
    pool.shutdown()


# --- whose fault ---


@pytest.mark.parametrize(
    "cause",
    [MemoryError(), RuntimeError("r"), ReleasedError("r"), TypeError("t"), AttributeError("a")],
    ids=lambda error: type(error).__name__,
)
def test_fault_of_the_server_is_raised_as_it_is(pool: MediaPool, cause: Exception) -> None:
    def fail() -> Any:
        raise cause

    jobs = submit_media_decodes([MediaRef(fail, b"")], pool)
    with pytest.raises(type(cause)) as caught:
        collect_media_decodes(jobs)
    assert type(caught.value) is type(cause)
    assert caught.value.__cause__ is cause


def test_job_sees_the_context_of_whoever_submitted_it(pool: MediaPool) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")
    token = variable.set("ours")
    jobs = [pool.submit(variable.get), *pool.submit_batch([variable.get])]
    jobs += [job.future for job in submit_media_decodes([MediaRef(variable.get, b"")], pool)]  # type: ignore[misc]
    cached = MediaCache(10, pool=pool).get_or_compute(b"k", lambda: (variable.get(), 1))
    variable.reset(token)
    assert [job.result(TIMEOUT) for job in jobs] == ["ours"] * 3
    assert cached == "ours"
