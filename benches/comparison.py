"""`Comparison`: one promise, measured against its baseline in the same run.

Owns how a comparison is timed, and nothing about what is compared. Machines are shared and noisy:
no absolute time is a result; batches of baseline and ours alternate, and the ratio of their
medians counts.
"""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Callable
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["Comparison"]

# A batch is long enough for the clock, and the loop around the calls, not to matter.
_BATCH_S = 0.002
# What one side of a comparison may take; fewer rounds for slow ones, but enough for a median.
_BUDGET_S = 2.0
_MIN_ROUNDS, _MAX_ROUNDS = 5, 200


class Comparison:
    """The fixture ``compare``: call it once a test."""

    def __init__(self, benchmark: BenchmarkFixture) -> None:
        self._benchmark = benchmark

    def __call__(
        self,
        name: str,
        *,
        ours: Callable[..., Any],
        baseline: Callable[..., Any],
        target: float,
        args: tuple[Any, ...] = (),
        equal: Callable[[Any, Any], bool] | None = operator.eq,
        setup: Callable[[], object] | None = None,
    ) -> None:
        """Measure ``ours(*args)`` against ``baseline(*args)`` and record the ratio.

        Args:
            name: The row in the table, as *noun, case*: ``"key, 64 B"``.
            ours: What safelight does.
            baseline: The same job without safelight.
            target: The ratio to reach: median time of `baseline` over median time of `ours`.
            args: Arguments of both. Passing them here, not in a lambda, keeps the cost of a call
                out of comparisons that are shorter than a microsecond.
            equal: Whether the two results are the same; None where they cannot be compared. Two
                different jobs make no ratio, so a difference fails the bench.
            setup: Called before each single call of either side, outside the time, for a job that
                uses up its input or must start cold. Without it, short calls run in batches.
        """
        prepare = setup or _nothing
        prepare()
        expected = baseline(*args)
        prepare()
        result = ours(*args)
        if equal is not None:
            assert equal(result, expected), f"{name}: ours and the baseline give different results"
        del result, expected

        baseline_calls = 1 if setup else _calls_in_batch(baseline, args)
        ours_calls = 1 if setup else _calls_in_batch(ours, args)
        prepare()
        longest = _time(baseline, args, baseline_calls)
        prepare()
        longest = max(longest, _time(ours, args, ours_calls))
        rounds = min(_MAX_ROUNDS, max(_MIN_ROUNDS, int(_BUDGET_S / longest)))
        baseline_times: list[float] = []

        def take_turns() -> None:
            prepare()
            baseline_times.append(_time(baseline, args, baseline_calls) / baseline_calls)
            prepare()

        def batch() -> None:
            for _ in range(ours_calls):
                ours(*args)

        self._benchmark.pedantic(batch, setup=take_turns, rounds=rounds, iterations=1)
        if self._benchmark.stats is None:  # --benchmark-disable: both ran, nothing was timed
            return
        ours_s = self._benchmark.stats.stats.median / ours_calls
        baseline_s = statistics.median(baseline_times)
        self._benchmark.extra_info["comparison"] = {
            "name": name,
            "ours_s": ours_s,
            "baseline_s": baseline_s,
            "ratio": baseline_s / ours_s,
            "target": target,
        }


def _nothing() -> None:
    pass


def _time(call: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call(*args)
    return time.perf_counter() - start


def _calls_in_batch(call: Callable[..., Any], args: tuple[Any, ...]) -> int:
    calls = 1
    while (taken := _time(call, args, calls)) < _BATCH_S / 4:
        calls *= 4
    return max(1, round(calls * _BATCH_S / taken))
