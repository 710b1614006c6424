"""The media pool, and decodes submitted to it and collected from it.

Owns how a request's decodes are started, awaited and drained: whatever was submitted ends before
anything is raised, and the first failure in request order is the one raised. Must never know what
a decode does, nor let an exception's text reach an error of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from safelight._safelight import Job, Mailbox, Pool, Watch, is_worker, media_pool
from safelight.errors import DecodeError, FetchError, MediaError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

__all__ = [
    "MediaDecodeJob",
    "MediaPool",
    "collect_media_decodes",
    "collect_media_decodes_async",
    "media_pool",
    "submit_media_decodes",
]

T = TypeVar("T")

_mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = WeakKeyDictionary()


def mailbox_of(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """Return the mailbox through which the pool wakes waiters of `loop`."""
    mailbox = _mailboxes.get(loop)
    if mailbox is None:
        mailbox = _mailboxes[loop] = Mailbox()
    return mailbox


class MediaPool(Pool):
    """Threads for decodes: named, bounded, new after a fork, gone at exit.

    Args:
        max_threads: Most threads. None: what affinity, cgroup and `os.process_cpu_count` allow, at
            most 8; the environment variable ``SAFELIGHT_MEDIA_THREADS`` overrides it.
        max_queue: Jobs that may wait; with a full queue a thread that submits waits for room, and
            a job that submits runs its own jobs inline.
    """

    __slots__ = ()

    def wait(self, jobs: Sequence[Job[Any]]) -> None:
        """Wait until every job has ended, however. Raises nothing of theirs."""
        for job in jobs:
            _settle(job)

    async def wait_async(self, jobs: Sequence[Job[Any]]) -> None:
        """As `wait`, with one wake-up of the loop when the last job ends.

        A cancelled waiter leaves the jobs running.
        """
        if is_worker():
            self.wait(jobs)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        watch = Watch(jobs, loop, mailbox_of(loop), future)
        try:
            await future
        finally:
            watch.leave()


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

    Each job is appended to `jobs` as it is submitted, so a failure half way loses none: the
    caller drains them all the same.

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
    for position, item in enumerate(items):
        modality, index, ref = item if isinstance(item, tuple) else ("image", position, item)
        if not ref.is_decoded:
            jobs.append(MediaDecodeJob(modality, index, executor.submit(ref.decode)))
    return jobs


def collect_media_decodes(
    jobs: Iterable[MediaDecodeJob], error_factory: ErrorFactory | None = None
) -> list[Any]:
    """Wait for all jobs; their values in the order of `jobs`.

    Args:
        jobs: What `submit_media_decodes` made.
        error_factory: Makes what is raised ``from`` the cause, of modality, original index and
            cause. By default a media or fetch error keeps its class and names its item, and any
            other exception becomes a `DecodeError` that does not repeat its text.

    Raises:
        BaseException: The first failure in the order of `jobs`, after every job has ended.
    """
    jobs = list(jobs)
    for job in jobs:
        _settle(job.future)
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


async def _drain_async(jobs: list[MediaDecodeJob]) -> None:
    own = [job.future for job in jobs if isinstance(job.future, Job)]
    foreign = [
        asyncio.wrap_future(_shadow(job.future)) for job in jobs if not isinstance(job.future, Job)
    ]
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            if own:
                await media_pool_wait(own)
            if foreign:
                await asyncio.wait(foreign)
            break
        except asyncio.CancelledError as error:
            cancelled = error
            for job in jobs:
                job.future.cancel()
    if cancelled is not None:
        raise cancelled


async def media_pool_wait(jobs: Sequence[Job[Any]]) -> None:
    """Wait until every job has ended, of whichever pool."""
    pool = cast("MediaPool", media_pool())
    await pool.wait_async(jobs)


def _shadow(future: Future[Any]) -> Future[None]:
    """Return a future that ends with `future` and cannot cancel it."""
    shadow: Future[None] = futures.Future()
    future.add_done_callback(lambda _: shadow.set_result(None))
    return shadow


def _settle(future: Job[Any] | Future[Any]) -> None:
    with suppress(futures.CancelledError):
        future.exception()


def _values(jobs: list[MediaDecodeJob], error_factory: ErrorFactory | None) -> list[Any]:
    factory = error_factory or _located
    for modality, index, future in jobs:
        if future.cancelled():
            continue
        cause = future.exception()
        if cause is not None:
            raise factory(modality, index, cause) from cause
    return [job.future.result() for job in jobs]


def _located(modality: str, index: int, cause: BaseException) -> BaseException:
    if isinstance(cause, (MediaError, FetchError)):
        return cause.at(modality, index)
    if isinstance(cause, Exception):
        return DecodeError("cannot be decoded").at(modality, index)
    return cause
