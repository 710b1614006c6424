"""The media pool: own threads, as Python sees them.

Owns how threads and event loops wait for jobs. Must never know what a job does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary

from safelight._safelight import Job, Mailbox, Pool, Watch, available_cores, is_worker, media_pool

__all__ = ["MediaPool", "PoolStats", "mailbox_of", "media_pool", "wait_for_room_async"]

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

    A job sees the context variables of whoever submitted it, as with `asyncio.to_thread`.

    Args:
        max_threads: Most threads; they start when there is work. None: what affinity, cgroup and
            ``os.process_cpu_count`` allow, at most 8; the environment variable
            ``SAFELIGHT_MEDIA_THREADS`` overrides it, unless it is empty.
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

        When the caller is cancelled, a job that has not started is withdrawn; one that runs goes
        on.
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
    if setting:
        try:
            return int(setting)
        except ValueError:
            raise ValueError(f"{_THREADS_SETTING} must be a number") from None
    # What Python is told (``-X cpu_count``) can only lower what the machine gives.
    process_cpu_count: Callable[[], int | None] = getattr(os, "process_cpu_count", available_cores)
    cores = min(available_cores(), process_cpu_count() or 1)
    return max(1, min(cores, _DEFAULT_MAX_THREADS))


async def wait_for_room_async(pool: Pool) -> None:
    """Return once the queue of `pool` has room again, or the pool takes no more jobs."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    pool.notify_room(loop, mailbox_of(loop), future)
    await future


async def _wait_async(watch: Watch[Any], count: int) -> None:
    if is_worker():
        # A loop that runs inside a job: waiting would keep this worker from what it waits for.
        watch.wait(count)
        return
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    watch.notify(count, loop, mailbox_of(loop), future)
    await future
