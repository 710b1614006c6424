"""What every test may count on: drawn-case profiles and the corpus of real files.

Owns nothing else: media for one test module is made in that module, by code.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

collect_ignore = ["typing"]  # checked by mypy, never run

# Timings vary by 2x on shared machines: a slow case is no failure, pytest-timeout catches hangs.
settings.register_profile(
    "fast", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("slow", settings.get_profile("fast"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real media files, from ``SAFELIGHT_CORPUS``; skips where there is none."""
    folder = os.environ.get("SAFELIGHT_CORPUS")
    if not folder:
        pytest.skip("no corpus of real files: set SAFELIGHT_CORPUS to its folder")
    # A folder that is named and not there is a mistake, not a reason to skip.
    assert Path(folder).is_dir(), "SAFELIGHT_CORPUS names no folder"
    return Path(folder)
