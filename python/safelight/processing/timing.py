"""`TimingContext`: seconds by stage of one request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TimingContext"]


class TimingContext:
    """Adds up the seconds that a request spends in each stage.

    Args:
        enabled: Whether to measure at all.
    """

    __slots__ = ("enabled", "stage_secs")

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.stage_secs: dict[str, float] = {}

    @contextmanager
    def record(self, stage: str) -> Iterator[None]:
        """Add what the block takes to `stage`."""
        if not self.enabled:
            yield
            return
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stage_secs[stage] = self.stage_secs.get(stage, 0.0) + time.perf_counter() - start
