"""What `import safelight` adds to the numpy and Pillow that it needs."""

from __future__ import annotations

import subprocess
import sys

from comparison import Comparison


def start(imported: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {imported}"], check=True)


def test_import(compare: Comparison) -> None:
    compare(
        "import, a new process",
        ours=lambda: start("numpy, PIL.Image, safelight"),
        baseline=lambda: start("numpy, PIL.Image"),
        target=0.85,
    )
