"""Decodes of one request: submitted, awaited and drained together.

Owns the order: whatever was submitted ends before anything is raised, and the first failure in
request order is the one raised. Must never know what a decode does, nor let an exception's text
reach an error of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple, Protocol

from safelight._safelight import Job, Pool, media_pool
from safelight.errors import DecodeError, FetchError, MediaError
from safelight.pool import MediaPool

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


class MediaRefLike(Protocol):
    """What a decode needs of a ref."""

    @property
    def is_decoded(self) -> bool: ...

    def decode(self) -> Any: ...


class MediaDecodeJob(NamedTuple):
    """A submitted decode and the place of its item in the request."""

    modality: str
    original_index: int
    future: Job[Any] | Future[Any]


ErrorFactory = Callable[[str, int, BaseException], BaseException]


def submit_media_decodes(
    items: Iterable[tuple[str, int, MediaRefLike] | MediaRefLike],
    executor: Pool | Executor | list[MediaDecodeJob] | None = None,
    jobs: list[MediaDecodeJob] | None = None,
) -> list[MediaDecodeJob]:
    """Submit the decode of every item that is not decoded yet.

    On a pool of ours all are submitted in one call. On a foreign executor each job is appended to
    `jobs` as it is submitted. Either way a failure half way loses none: the caller drains them all
    the same.

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
    wanted: list[tuple[str, int, MediaRefLike]] = []
    try:
        for position, item in enumerate(items):
            modality, index, ref = item if isinstance(item, tuple) else ("image", position, item)
            if not ref.is_decoded:
                wanted.append((modality, index, ref))
    finally:
        # Also where `items` itself failed half way.
        _submit(wanted, executor, jobs)
    return jobs


def try_submit_media_decodes(
    items: Iterable[tuple[str, int, MediaRefLike]], jobs: list[MediaDecodeJob]
) -> list[tuple[str, int, MediaRefLike]]:
    """Submit decodes as `submit_media_decodes` does, as many as the media pool has room for.

    Returns:
        The items that found no room, in their order. Never waits.
    """
    wanted = [item for item in items if not item[2].is_decoded]
    pool = media_pool()
    room = max(0, pool.max_queue - pool.stats().queued)
    submit_media_decodes(wanted[:room], jobs=jobs)
    return wanted[room:]


async def submit_media_decodes_async(
    items: Iterable[tuple[str, int, MediaRefLike]], jobs: list[MediaDecodeJob]
) -> None:
    """Submit decodes as `submit_media_decodes` does, awaiting room for them."""
    rest = try_submit_media_decodes(items, jobs)
    while rest:
        await asyncio.sleep(0.001)
        rest = try_submit_media_decodes(rest, jobs)


def _submit(
    wanted: list[tuple[str, int, MediaRefLike]],
    executor: Pool | Executor,
    jobs: list[MediaDecodeJob],
) -> None:
    if isinstance(executor, Pool):
        # All in one crossing; what native code decodes needs the interpreter at its end only.
        futures = executor.submit_batch([_work(ref) for _, _, ref in wanted])
        for (modality, index, _), future in zip(wanted, futures, strict=True):
            jobs.append(MediaDecodeJob(modality, index, future))
    else:
        for modality, index, ref in wanted:
            jobs.append(MediaDecodeJob(modality, index, executor.submit(ref.decode)))


def _work(ref: MediaRefLike) -> Job[Any] | Callable[[], Any]:
    """What decodes `ref` on the pool."""
    begin: Callable[[], Job[Any] | None] | None = getattr(ref, "decode_job", None)
    job = begin() if begin is not None else None
    return ref.decode if job is None else job


def collect_media_decodes(
    jobs: Iterable[MediaDecodeJob], error_factory: ErrorFactory | None = None
) -> list[Any]:
    """Wait for all jobs; their values in the order of `jobs`.

    Args:
        jobs: What `submit_media_decodes` made.
        error_factory: Makes what is raised ``from`` the cause, of modality, original index and
            cause. By default a media or fetch error keeps its class and names its item, and any
            other `Exception` becomes a `DecodeError` that does not repeat its text. Others, such as
            `KeyboardInterrupt`, are raised as they are.

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

    When the caller is cancelled, also more than once, jobs that have not begun are withdrawn and
    the running ones end first; then `asyncio.CancelledError` goes on.
    """
    jobs = list(jobs)
    await _drain_async(jobs)
    return _values(jobs, error_factory)


def drain_media_decodes(jobs: Sequence[MediaDecodeJob]) -> None:
    """Withdraw the jobs that have not begun, and wait until the others have ended.

    Raises nothing of theirs: what they came to no longer matters to the caller.
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
        # A signal. What has not begun is withdrawn, what runs may still read its payload.
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
    for modality, index, future in jobs:
        cause = None if future.cancelled() else future.exception()
        if isinstance(cause, Exception):
            raise factory(modality, index, cause) from cause
        if cause is not None:
            future.result()
    return [job.future.result() for job in jobs]


def _located(modality: str, index: int, cause: BaseException) -> BaseException:
    if isinstance(cause, (MediaError, FetchError)):
        return cause.at(modality, index)
    return DecodeError("cannot be decoded").at(modality, index)
