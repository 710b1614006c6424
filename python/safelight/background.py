"""One event loop on a thread of ours, for callers that block.

Owns the life of that loop: started at its first use, new in the child of a fork, joined at exit.
Must never know what runs on it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

__all__ = ["is_background_thread", "run_in_background"]

T = TypeVar("T")

# A daemon thread that does not end by then is left to the end of the process.
_EXIT_TIMEOUT_S = 5.0


def run_in_background(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of `coroutine`, run on the background loop; the caller blocks.

    It sees the caller's context variables. An interrupt of the caller cancels it, waits until it
    has ended, and propagates; a second one does not wait. On the background thread itself, which
    must not wait for itself, the coroutine runs on a loop of its own.

    Raises:
        RuntimeError: The process is about to exit.
    """
    if not is_background_thread():
        return _background.run(coroutine)
    nested = _BackgroundLoop()
    try:
        return nested.run(coroutine)
    finally:
        nested.close()


def is_background_thread() -> bool:
    """Whether the caller runs on the background loop: nobody else's latency is at stake there."""
    return isinstance(threading.current_thread(), _Thread)


class _Thread(threading.Thread):
    """The thread of a background loop."""

    def __init__(self) -> None:
        super().__init__(name="safelight-background", daemon=True)
        self.loop: Future[asyncio.AbstractEventLoop] = Future()
        self._is_over = asyncio.Event()

    def run(self) -> None:
        # Cancels what still runs, then closes what lives as long as the loop.
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop.set_result(asyncio.get_running_loop())
        await self._is_over.wait()

    def end(self) -> None:
        # The loop has ended by itself only if the interpreter is in its last steps.
        with suppress(RuntimeError):
            self.loop.result().call_soon_threadsafe(self._is_over.set)
        self.join(_EXIT_TIMEOUT_S)


class _BackgroundLoop:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        self._is_closed = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            task = loop.create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(partial(_hand_over, result=result))

        try:
            loop = self._start()
            loop.call_soon_threadsafe(start)
        except BaseException:
            coroutine.close()
            raise
        try:
            return result.result()
        except BaseException:
            if not result.done():
                loop.call_soon_threadsafe(lambda: tasks[0].cancel())  # noqa: PLW0108 - not there yet
                wait([result])
            raise

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the process is about to exit")
            if self._thread is None:
                thread = _Thread()
                thread.start()
                self._thread = thread
        return self._thread.loop.result()

    def close(self) -> None:
        """End the loop; waits for a bounded time."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.end()


def _hand_over(task: asyncio.Task[T], result: Future[T]) -> None:
    """Make the result of `task`, which is done, that of `result`, which other threads await."""
    if task.cancelled():
        result.cancel()
        result.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(task.result())


_background = _BackgroundLoop()
# What a child of a fork has of its parent: never used, never finalized.
_of_parent: list[_BackgroundLoop] = []


def _replace_after_fork() -> None:
    global _background  # noqa: PLW0603 - its thread is not here, and its lock may be held
    _of_parent.append(_background)
    _background = _BackgroundLoop()


@atexit.register
def _close_at_exit() -> None:
    _background.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_after_fork)
