"""The README's example runs as it is printed there, and its commands exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from PIL import Image

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def lines_of(example: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run `example` beside a photo; what it prints."""
    Image.radial_gradient("L").convert("RGB").save(folder / "photo.jpg")
    monkeypatch.chdir(folder)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(example, "README.md", "exec"), {})
    return output.getvalue().splitlines()


def test_example_decodes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    lines = lines_of(EXAMPLES[0], tmp_path, monkeypatch)
    assert lines[0].startswith("JPEG (256, 256) ")
    assert [line.rpartition(" ")[2] for line in lines[1:]] == ["[False]", "[True]"]


def test_example_without_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of(EXAMPLES[1], tmp_path, monkeypatch) == ["(256, 256, 3) True"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_short(example: str) -> None:
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 20


def test_makefile_has_the_commands() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^ +make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
