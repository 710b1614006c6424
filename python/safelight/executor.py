"""The media pool, and decodes submitted to it and collected from it.

Owns how a request's decodes are started, awaited and drained: whatever was submitted ends before
anything is raised, and the first failure in request order is the one raised. Must never know what
a decode does, nor let an exception's text reach an error of ours.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from safelight._safelight import Job, Mailbox, Pool, Watch, available_cores, is_worker, media_pool
from safelight.errors import DecodeError, FetchError, MediaError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

__all__ = [
    "MediaDecodeJob",
    "MediaPool",
    "PoolStats",
    "collect_media_decodes",
    "collect_media_decodes_async",
    "drain_media_decodes",
    "drain_media_decodes_async",
    "media_pool",
    "submit_media_decodes",
]

T = TypeVar("T")
P = ParamSpec("P")

_THREADS_SETTING = "SAFELIGHT_MEDIA_THREADS"
# Beyond this many threads decodes compete for memory bandwidth, not for cores.
_DEFAULT_MAX_THREADS = 8

_mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = WeakKeyDictionary()


def mailbox_of(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """Return the mailbox through which the pool wakes waiters of `loop`."""
    mailbox = _mailboxes.get(loop)
    if mailbox is None:
        mailbox = _mailboxes[loop] = Mailbox()
    return mailbox


class PoolStats(NamedTuple):
    """Counters of a pool at one moment. ``_asdict()`` gives them to an exporter."""

    threads: int
    """Threads alive."""
    idle: int
    """Threads that wait for work."""
    queued: int
    """Jobs that wait."""
    taken: int
    """Jobs that threads took up, since the start."""
    inlined: int
    """Jobs that ran on the job that submitted them, because the queue was full."""
    attached_ns: int
    """Nanoseconds that threads held the interpreter for jobs, since the start. What foreign code
    spends detached counts as held."""


class MediaPool(Pool):
    """Threads for decodes: named, bounded, new after a fork, gone at exit.

    Args:
        max_threads: Most threads; they start when there is work. None: what affinity, cgroup and
            ``os.process_cpu_count`` allow, at most 8; the environment variable
            ``SAFELIGHT_MEDIA_THREADS`` overrides it.
        max_queue: Jobs that may wait. With a full queue a thread that submits waits for room, and
            a job that submits runs its jobs itself.
        name: Threads are named so, with a number behind it.
        niceness: What threads add to the process's own, on Linux, so that a thread that waits for
            events, such as that of a loop, need not wait for one that decodes.
    """

    __slots__ = ()

    def __new__(
        cls,
        max_threads: int | None = None,
        *,
        max_queue: int = 1024,
        name: str = "safelight-media",
        niceness: int = 5,
    ) -> Self:
        """Make a pool; its threads start when there is work."""
        if max_threads is None:
            max_threads = _default_threads()
        return super().__new__(cls, max_threads, max_queue=max_queue, name=name, niceness=niceness)

    def stats(self) -> PoolStats:
        """Return the counters at this moment."""
        return PoolStats(**self._stats())

    async def run_async(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``function(*args, **kwargs)``, run on the pool.

        When the caller is cancelled, a job that has not begun is withdrawn; one that runs goes on.
        """
        job = self.submit(function, *args, **kwargs)
        try:
            await self.wait_async([job])
        except asyncio.CancelledError:
            job.cancel()
            raise
        return job.result()

    @staticmethod
    def wait(jobs: Sequence[Job[Any]]) -> None:
        """Wait until every job has ended, however. Raises nothing of theirs."""
        Watch(jobs).wait(len(jobs))

    @staticmethod
    async def wait_async(jobs: Sequence[Job[Any]]) -> None:
        """As `wait`, with one wake-up of the loop. Cancelling it leaves the jobs running."""
        watch = Watch(jobs)
        try:
            await _wait_async(watch, len(jobs))
        finally:
            watch.leave()

    @staticmethod
    def as_completed(jobs: Sequence[Job[T]]) -> Iterator[Job[T]]:
        """Yield the jobs as they end."""
        watch = Watch(jobs)
        count = 0
        while count < len(jobs):
            watch.wait(count + 1)
            for job in watch.take():
                count += 1
                yield job

    @staticmethod
    async def as_completed_async(jobs: Sequence[Job[T]]) -> AsyncIterator[Job[T]]:
        """As `as_completed`; jobs that end together cost the loop one wake-up."""
        watch = Watch(jobs)
        count = 0
        try:
            while count < len(jobs):
                await _wait_async(watch, count + 1)
                for job in watch.take():
                    count += 1
                    yield job
        finally:
            watch.leave()


def _default_threads() -> int:
    setting = os.environ.get(_THREADS_SETTING)
    if setting is not None:
        try:
            return int(setting)
        except ValueError:
            raise ValueError(f"{_THREADS_SETTING} must be a number") from None
    # What Python is told (``-X cpu_count``) can only lower what the machine gives.
    process_cpu_count: Callable[[], int | None] = getattr(os, "process_cpu_count", available_cores)
    cores = min(available_cores(), process_cpu_count() or 1)
    return max(1, min(cores, _DEFAULT_MAX_THREADS))


async def _wait_async(watch: Watch[Any], count: int) -> None:
    if is_worker():
        # A loop that runs inside a job: waiting would keep this worker from what it waits for.
        watch.wait(count)
        return
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    watch.notify(count, loop, mailbox_of(loop), future)
    await future


def limit_nested_threads() -> None:
    """Have every OpenMP runtime that is loaded use one thread for work of the calling thread.

    Each of the pool's threads would otherwise start as many of OpenMP's as there are cores. The
    limit is OpenMP's own for the calling thread: other threads of the process keep theirs.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        # The first call on a thread sets that thread to torch's default; it must not come later.
        torch.get_num_threads()
    for path in _loaded_openmp():
        with suppress(OSError, AttributeError):
            ctypes.CDLL(path, mode=_LOADED_ONLY).omp_set_num_threads(1)


# RTLD_NOLOAD: a handle to what is loaded, or an error. Python names it nowhere; 4 on Linux.
_LOADED_ONLY = getattr(os, "RTLD_NOLOAD", 4) | getattr(os, "RTLD_NOW", 2)


def _loaded_openmp() -> set[str]:
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return set()  # Not Linux: nothing is known.
    paths = {line[line.find("/") :] for line in maps.splitlines() if "omp" in line}
    return {path for path in paths if re.match(r"lib(gomp|omp|iomp5)[-.]", path.rpartition("/")[2])}


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
