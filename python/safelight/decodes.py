"""Decodes of one request: submitted, awaited and drained together.

Owns the order: whatever was submitted ends before anything is raised, and the first failure in
request order is the one raised. Must never know what a decode does, nor let an exception's text
reach an error of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple, Protocol, TypeVar

from safelight._safelight import Job, Pool, media_pool
from safelight.errors import DecodeError, FetchError, MediaError, ReleasedError
from safelight.inputs import ItemPlace
from safelight.pool import MediaPool, wait_for_room_async
from safelight.ref import MediaRef

__all__ = [
    "MediaDecodeJob",
    "collect_media_decodes",
    "collect_media_decodes_async",
    "drain_media_decodes",
    "drain_media_decodes_async",
    "submit_media_decodes",
    "submit_media_decodes_async",
    "try_submit_media_decodes",
]


R = TypeVar("R")


class MediaRefLike(Protocol):
    """What a decode needs of a ref."""

    @property
    def is_decoded(self) -> bool: ...

    def decode(self) -> Any: ...


class MediaDecodeJob(NamedTuple):
    """A submitted decode and the place of its item in the request."""

    place: ItemPlace
    future: Job[Any] | Future[Any]

    @property
    def modality(self) -> str:
        """Name of the item's modality."""
        return self.place.modality

    @property
    def original_index(self) -> int:
        """Number of the item among those of its modality, in the order of the request."""
        return self.place.original_index


ErrorFactory = Callable[[str, int, BaseException], BaseException]

DecodeItem = tuple[str, int, MediaRefLike] | MediaRefLike
"""``(modality, original_index, ref)``; a bare ref is the image at its position."""


def submit_media_decodes(
    items: Iterable[DecodeItem],
    executor: Pool | Executor | list[MediaDecodeJob] | None = None,
    jobs: list[MediaDecodeJob] | None = None,
) -> list[MediaDecodeJob]:
    """Submit the decode of every item that is not decoded yet; with a full queue, wait for room.

    Every job is in `jobs` before it can run, so that a failure half way loses none: the caller
    drains them all the same. Where it is a signal, or a pool that is shut down, what has not
    started is withdrawn.

    Args:
        items: ``(modality, original_index, ref)``; a bare ref is the image at its position.
        executor: The media pool (None), another pool, or any `concurrent.futures.Executor`. The
            list of jobs may stand in its place.
        jobs: The caller's list.

    Returns:
        `jobs`, or a list of its own where the caller gave none.
    """
    if isinstance(executor, list):
        if jobs is not None:
            raise TypeError("jobs is given twice")
        executor, jobs = None, executor
    if executor is None:
        executor = media_pool()
    if jobs is None:
        jobs = []
    wanted: list[tuple[ItemPlace, MediaRefLike]] = []
    try:
        wanted.extend(_undecoded(items))
    finally:
        # Also where `items` itself failed half way.
        if isinstance(executor, Pool):
            _queue(wanted, executor.submit_batch, jobs)
        else:
            for place, ref in wanted:
                jobs.append(MediaDecodeJob(place, executor.submit(ref.decode)))
    return jobs


def try_submit_media_decodes(
    items: Iterable[DecodeItem], jobs: list[MediaDecodeJob]
) -> list[DecodeItem]:
    """Submit what the queue of the media pool has room for; the items that found none.

    Never waits, and decodes nothing here. What is decoded already needs no job.
    """
    wanted = list(_undecoded(items))
    before = len(jobs)
    count = _queue(wanted, media_pool().offer, jobs)
    # What was not queued nobody runs.
    withdraw = [job.future for job in jobs[before + count :]]
    del jobs[before + count :]
    for future in withdraw:
        future.cancel()
    return [(*place, ref) for place, ref in wanted[count:]]


async def submit_media_decodes_async(
    items: Iterable[DecodeItem], jobs: list[MediaDecodeJob]
) -> None:
    """As `submit_media_decodes`, on an event loop: with a full queue, await room."""
    rest = try_submit_media_decodes(items, jobs)
    while rest:
        await wait_for_room_async(media_pool())
        rest = try_submit_media_decodes(rest, jobs)


def _undecoded(items: Iterable[DecodeItem]) -> Iterator[tuple[ItemPlace, MediaRefLike]]:
    for position, item in enumerate(items):
        modality, index, ref = item if isinstance(item, tuple) else ("image", position, item)
        if not ref.is_decoded:
            yield ItemPlace(modality, index), ref


def _queue(
    wanted: list[tuple[ItemPlace, MediaRefLike]],
    queue: Callable[[list[Job[Any]]], R],
    jobs: list[MediaDecodeJob],
) -> R:
    """Make a job of each and hand them to `queue` in one crossing."""
    futures: list[Job[Any]] = []
    try:
        for place, ref in wanted:
            job: Job[Any] = ref.decode_job() if isinstance(ref, MediaRef) else Job(ref.decode)
            futures.append(job)
            jobs.append(MediaDecodeJob(place, job))
        return queue(futures)
    except BaseException:
        for job in futures:
            if not job.running():
                job.cancel()
        raise


def collect_media_decodes(
    jobs: Iterable[MediaDecodeJob], error_factory: ErrorFactory | None = None
) -> list[Any]:
    """Wait for all jobs; their values in the order of `jobs`.

    Args:
        jobs: What `submit_media_decodes` made.
        error_factory: Makes what is raised ``from`` the cause, of modality, original index and
            cause. By default a media or fetch error keeps its class and names its item; what is no
            fault of the bytes, such as `MemoryError`, `RuntimeError` or `TypeError`, and what is
            no `Exception`, is raised as it is, as a copy; any other becomes a `DecodeError` that
            does not repeat its text. A factory may return the cause for the same.

    Raises:
        BaseException: The first failure in the order of `jobs`, after every job has ended.
        concurrent.futures.CancelledError: A job was withdrawn, and none failed.
    """
    jobs = list(jobs)
    _drain(jobs)
    return _values(jobs, error_factory)


async def collect_media_decodes_async(
    jobs: Iterable[MediaDecodeJob], error_factory: ErrorFactory | None = None
) -> list[Any]:
    """As `collect_media_decodes`, on an event loop.

    When the caller is cancelled, also more than once, jobs that have not started are withdrawn and
    the running ones end first; then `asyncio.CancelledError` goes on.
    """
    jobs = list(jobs)
    await _drain_async(jobs)
    return _values(jobs, error_factory)


def drain_media_decodes(jobs: Sequence[MediaDecodeJob]) -> None:
    """Withdraw the jobs that have not started, and wait until the others have ended.

    Raises nothing of theirs: their results no longer matter to the caller.
    """
    _withdraw(jobs)
    _drain(jobs)


async def drain_media_decodes_async(jobs: Sequence[MediaDecodeJob]) -> None:
    """As `drain_media_decodes`, on an event loop. A cancellation goes on once all have ended."""
    _withdraw(jobs)
    await _drain_async(jobs)


async def _drain_async(jobs: Sequence[MediaDecodeJob]) -> None:
    own = [job.future for job in jobs if isinstance(job.future, Job)]
    foreign = [job.future for job in jobs if not isinstance(job.future, Job)]
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            if own:
                await MediaPool.wait_async(own)
            if foreign:
                await asyncio.wait([asyncio.wrap_future(_end_of(future)) for future in foreign])
        except asyncio.CancelledError as error:
            cancelled = error
            _withdraw(jobs)
        else:
            break
    if cancelled is not None:
        raise cancelled


def _drain(jobs: Sequence[MediaDecodeJob]) -> None:
    try:
        _wait(jobs)
    except BaseException:
        # A signal. What has not started is withdrawn, what runs may still read its payload.
        _withdraw(jobs)
        _wait(jobs)
        raise


def _wait(jobs: Sequence[MediaDecodeJob]) -> None:
    MediaPool.wait([job.future for job in jobs if isinstance(job.future, Job)])
    futures.wait([job.future for job in jobs if not isinstance(job.future, Job)])


def _withdraw(jobs: Sequence[MediaDecodeJob]) -> None:
    for job in jobs:
        job.future.cancel()


def _end_of(future: futures.Future[Any]) -> futures.Future[None]:
    """Return a future that ends with `future`; cancelling it does not reach `future`."""
    end: futures.Future[None] = futures.Future()

    def finish(_: futures.Future[Any]) -> None:
        if end.set_running_or_notify_cancel():
            end.set_result(None)

    future.add_done_callback(finish)
    return end


def _values(jobs: list[MediaDecodeJob], error_factory: ErrorFactory | None) -> list[Any]:
    factory = error_factory or _located
    for place, future in jobs:
        cause = None if future.cancelled() else future.exception()
        if isinstance(cause, Exception):
            raised = factory(*place, cause)
            if raised is not cause:
                raise raised from cause
            future.result()
        if cause is not None:
            future.result()
    return [job.future.result() for job in jobs]


# What a decoder raises of the server, its settings or a caller's mistake: no client is to blame.
_SERVER_ERRORS = (
    MemoryError,
    RuntimeError,
    ReleasedError,
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    AssertionError,
)


def _located(modality: str, index: int, cause: BaseException) -> BaseException:
    if isinstance(cause, (MediaError, FetchError)):
        return cause.at(modality, index)
    if isinstance(cause, _SERVER_ERRORS):
        return cause
    return DecodeError("cannot be decoded").at(modality, index)
