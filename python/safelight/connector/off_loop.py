"""Work of size, away from the event loop: on the media pool, where decodes run too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from safelight.pool import media_pool

__all__ = ["off_loop"]

T = TypeVar("T")


async def off_loop(call: Callable[[], T]) -> T:
    """Return ``call()``, run on the media pool.

    A cancelled caller withdraws it if it has not begun, and does not wait for it otherwise.
    """
    job = media_pool().submit(call)
    try:
        await media_pool().wait_async([job])
    except asyncio.CancelledError:
        job.cancel()
        raise
    return job.result()
