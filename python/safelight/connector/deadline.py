"""One deadline over everything that a fetch does: turns, names, hops, retries and bodies."""

from __future__ import annotations

import time

__all__ = ["Deadline"]


class Deadline:
    """A moment after which a fetch has failed."""

    __slots__ = ("_at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Seconds left; not positive once the deadline has passed."""
        return self._at - time.monotonic()
