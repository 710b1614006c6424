"""Decodes as jobs of the pool: the same media as `decode` gives, made once, whoever asks."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

from safelight._safelight import Claim, Job, decode_job
from safelight.budget import DecodedBudget
from safelight.decodes import collect_media_decodes, submit_media_decodes
from safelight.errors import DecodeError, LimitError, UnsupportedMediaError
from safelight.media import ImageMediaIO
from safelight.pool import MediaPool
from safelight.ref import MediaRef, StagedDecoder

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
    begun, gate = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        gate.wait(TIMEOUT)

    pool.submit(wait)
    assert begun.wait(TIMEOUT)
    yield gate.set
    gate.set()


def calls_of(ref: MediaRef[Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each decode of an image in the caller's place."""
    from safelight.media import raster

    calls: list[int] = []
    decode = raster.decode_image

    def counting(*args: Any) -> Any:
        calls.append(1)
        return decode(*args)

    monkeypatch.setattr(raster, "decode_image", counting)
    assert not ref.is_decoded
    return calls


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
    assert all(type(ref.decode_job()).__name__ == "Job" for ref in refs[:1])
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


def test_ways_without_a_job() -> None:
    data = encode()
    assert MediaRef(lambda: 1, b"").decode_job() is None
    assert ImageMediaIO(decoder="pillow").load_bytes_ref(data).decode_job() is None
    assert ImageMediaIO("CMYK").load_bytes_ref(data).decode_job() is None
    ref = ImageMediaIO().load_bytes_ref(data)
    assert ref.map(lambda image: image).decode_job() is None
    assert ref.decode_job() is not None
    ref.release()
    assert ref.decode_job() is None


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


def test_thread_does_not_wait_for_a_job_that_has_not_begun(
    pool: MediaPool, busy: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = ImageMediaIO().load_bytes_ref(encode())
    (job,) = submit_media_decodes([ref], pool)
    calls = calls_of(ref, monkeypatch)
    media = ref.fork().decode()
    busy()
    assert job.future.result(TIMEOUT) is media
    assert calls == [1]


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
    refs = [ImageMediaIO(output="numpy").load_bytes_ref(data) for _ in range(4)]
    before = pool.stats().attached_ns
    begun = time.perf_counter_ns()
    jobs = pool.submit(submit_media_decodes, refs, pool).result(TIMEOUT)
    spent = time.perf_counter_ns() - begun
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


def test_subclass_that_decodes_in_its_own_way_is_asked(pool: MediaPool) -> None:
    class Sized(MediaRef[Any]):
        def decode(self) -> Any:
            return super().decode().size

    whole = ImageMediaIO().load_bytes_ref(encode())
    ref = Sized(whole._deferred._decoder, whole.data)  # type: ignore[union-attr, arg-type]
    assert collect_media_decodes(submit_media_decodes([ref], pool)) == [(40, 40)]


class Asking(StagedDecoder):
    """A decoder whose job is declined, and which then asks for its own media."""

    ref: MediaRef[Any]

    def __call__(self) -> Any:
        return self.ref.decode()

    def begin(self, claim: Claim, finish: Callable[[Any, bool], Any]) -> Job[Any] | None:
        return decode_job(b"no image", ("RGB", None, 1, 1, 1), claim, finish)


@pytest.mark.timeout(30)
def test_job_whose_decoder_asks_for_its_own_media_is_refused(pool: MediaPool) -> None:
    decoder = Asking()
    decoder.ref = MediaRef(decoder, b"")
    (job,) = submit_media_decodes([decoder.ref], pool)
    assert isinstance(job.future.exception(TIMEOUT), RuntimeError)
