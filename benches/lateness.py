"""How late an event loop is while something runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["lateness_s"]

_TICK_S = 0.001


async def lateness_s(run: Callable[[], Awaitable[Any]]) -> float:
    """Return how late the loop is at the 99th percentile of its ticks while `run` runs."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            late.append(time.perf_counter() - due)

    ticking = asyncio.create_task(tick())
    await run()
    ticking.cancel()
    return sorted(late)[len(late) * 99 // 100]
