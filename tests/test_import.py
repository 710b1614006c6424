"""`import safelight` costs what numpy and Pillow cost, and needs nothing else.

Each case is a process of its own: what is loaded is the subject.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

# Slow to import, or an extra that may not be installed.
NOT_LOADED = [
    "PIL.ImageOps",
    "asyncio",
    "concurrent.futures",
    "httpx2",
    "importlib.metadata",
    "jinja2",
    "multiprocessing",
    "rich",
    "safetensors",
    "torch",
    "torchvision",
    "transformers",
]
EXTRAS = ["httpx2", "jinja2", "rich", "safetensors", "tokenizers", "torch", "torchvision"]
EXTRAS += ["transformers"]


def run(code: str) -> Any:
    """Run `code` in a fresh interpreter with warnings as errors; return the JSON it prints."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def added() -> set[str]:
    """The modules that safelight loads on top of numpy and Pillow."""
    return set(
        run("""
            import json, sys
            import numpy, PIL.Image
            before = set(sys.modules)
            import safelight
            print(json.dumps(sorted(set(sys.modules) - before)))
        """)
    )


@pytest.mark.parametrize("module", NOT_LOADED)
def test_import_does_not_load(added: set[str], module: str) -> None:
    assert "safelight" in added
    assert module not in added


def test_star_import_works_without_any_extra() -> None:
    names = run(f"""
        import json, sys

        class NotInstalled:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {EXTRAS!r}:
                    raise ModuleNotFoundError(f"no module named {{name!r}}", name=name)

        sys.meta_path.insert(0, NotInstalled())
        from safelight import *
        import safelight
        print(json.dumps([name for name in safelight.__all__ if name not in globals()]))
    """)
    assert names == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    import safelight

    with pytest.raises(AttributeError, match="no_such_name"):
        safelight.no_such_name  # noqa: B018  # the look-up itself is the subject
