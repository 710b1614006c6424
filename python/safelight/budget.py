"""Byte budgets of one request: what it may download, and what it may decode to.

Owns the sums and the refusal. Thread-safe: the items of a request are fetched and decoded in
parallel. Must never know where bytes come from or what they mean.
"""

from __future__ import annotations

import threading
from typing import ClassVar, Self

from safelight.errors import LimitError, PayloadTooLargeError

__all__ = ["Charge", "DecodedBudget", "DownloadBudget"]


class _Budget:
    """A number of bytes that charges draw on and refunds give back."""

    __slots__ = ("_lock", "_max_bytes", "_used")

    _noun: ClassVar[str]
    _error: ClassVar[type[LimitError | PayloadTooLargeError]]

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must not be negative, not {max_bytes}")
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._used = 0

    @property
    def max_bytes(self) -> int:
        """Bytes that one request may use in all."""
        return self._max_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes charged and not refunded."""
        return self._used

    def charge(self, nbytes: int) -> None:
        """Take `nbytes`, or take nothing and raise.

        Raises:
            LimitError: From a `DecodedBudget` that has less than `nbytes` left.
            PayloadTooLargeError: From a `DownloadBudget` that has less than `nbytes` left.
            ValueError: `nbytes` is negative.
        """
        if nbytes < 0:
            raise ValueError(f"a charge must not be negative, not {nbytes}")
        with self._lock:
            used = self._used + nbytes
            if used <= self._max_bytes:
                self._used = used
                return
        raise self._error(
            f"the request's {self._noun} bytes are {used}, over its budget {self._max_bytes}",
            limit=self._max_bytes,
            actual=used,
        )

    def refund(self, nbytes: int) -> None:
        """Give back `nbytes` of an earlier charge.

        Raises:
            ValueError: More than is used, or less than nothing.
        """
        with self._lock:
            if not 0 <= nbytes <= self._used:
                raise ValueError(f"a refund must be from 0 to {self._used}, not {nbytes}")
            self._used -= nbytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._used} of {self._max_bytes} bytes used)"


class DecodedBudget(_Budget):
    """Bytes that the media of one request may decode to.

    An image is charged from its header when its ref is made, settled when it is decoded, and
    refunded when a cache serves it instead.
    """

    __slots__ = ()
    _noun = "decoded"
    _error = LimitError


class DownloadBudget(_Budget):
    """Encoded bytes that the items of one request may bring."""

    __slots__ = ()
    _noun = "encoded"
    _error = PayloadTooLargeError


class Charge:
    """Bytes that one item holds of a budget, and gives back unless they are kept.

    Shared by all who have the item: a ref, its forks and its maps, which decode the payload once
    between them; the attempts of a download. As a context manager it gives back what it holds if
    the block raises, and leaves it held otherwise.

    Args:
        budget: What to draw on; None is a charge that is never refused.
        nbytes: What to hold at once.

    Raises:
        LimitError: From a `DecodedBudget` without room.
        PayloadTooLargeError: From a `DownloadBudget` without room.
    """

    __slots__ = ("_budget", "_held", "_is_settled", "_lock")

    def __init__(self, budget: DecodedBudget | DownloadBudget | None, nbytes: int = 0) -> None:
        if budget is not None:
            budget.charge(nbytes)
        self._budget = budget
        self._lock = threading.Lock()
        self._held = nbytes
        self._is_settled = False

    @property
    def held_bytes(self) -> int:
        """Bytes that are held."""
        return self._held

    def settle(self, nbytes: int) -> None:
        """Hold exactly `nbytes`, for good: what the decode really takes.

        Raises:
            LimitError, PayloadTooLargeError: The budget has no room for the difference; what was
                held stays held.
        """
        with self._lock:
            self._hold(nbytes)
            self._is_settled = True

    def reserve(self, nbytes: int) -> None:
        """Hold exactly `nbytes`, for work that may still be called off; not once settled.

        Raises:
            LimitError, PayloadTooLargeError: As `settle`.
        """
        with self._lock:
            if not self._is_settled:
                self._hold(nbytes)

    def refund(self) -> None:
        """Give everything back, unless it is settled; what comes after holds anew."""
        with self._lock:
            if not self._is_settled:
                self._hold(0)

    def _hold(self, nbytes: int) -> None:
        if self._budget is not None:
            if nbytes > self._held:
                self._budget.charge(nbytes - self._held)
            else:
                self._budget.refund(self._held - nbytes)
        self._held = nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.refund()
