"""How many threads of its own a native library may start on a thread of the pool.

Owns the limit of OpenMP runtimes. Must never load a library.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["limit_nested_threads"]


def limit_nested_threads(threads: int = 1) -> None:
    """Have every OpenMP runtime that is loaded use `threads` for work of the calling thread.

    Each of the pool's threads would otherwise start as many of OpenMP's as there are cores. The
    limit is OpenMP's own for the calling thread: other threads of the process keep theirs.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        # The first call on a thread sets that thread to torch's default; it must not come later.
        torch.get_num_threads()
    for path in _loaded_openmp():
        with suppress(OSError, AttributeError):
            ctypes.CDLL(path, mode=_LOADED_ONLY).omp_set_num_threads(threads)


# RTLD_NOLOAD: a handle to what is loaded, or an error. Python names it nowhere; 4 on Linux.
_LOADED_ONLY = getattr(os, "RTLD_NOLOAD", 4) | getattr(os, "RTLD_NOW", 2)


def _loaded_openmp() -> set[str]:
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return set()  # Not Linux: nothing is known.
    paths = {line[line.find("/") :] for line in maps.splitlines() if "omp" in line}
    return {path for path in paths if re.match(r"lib(gomp|omp|iomp5)[-.]", path.rpartition("/")[2])}
