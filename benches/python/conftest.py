"""The fixture of every Python bench."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from comparison import Comparison


@pytest.fixture
def compare(benchmark: BenchmarkFixture) -> Comparison:
    """The comparison of this test, to be called once; see `Comparison`."""
    return Comparison(benchmark)
