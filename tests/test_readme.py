"""The README's example runs as it is printed there, and its commands exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from PIL import Image

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_example_decodes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    Image.radial_gradient("L").convert("RGB").save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(example, "README.md", "exec"), {})
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("JPEG (256, 256) ")
    assert [line.rpartition(" ")[2] for line in lines[1:]] == ["[False]", "[True]"]


def test_example_is_short() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 20


def test_makefile_has_the_commands() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^ +make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
