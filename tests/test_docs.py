"""What code and docs cite is in the repository, and the docs name what is there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import safelight

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SUFFIXES = {".py", ".pyi", ".rs", ".c", ".toml", ".md", ".txt", ".yaml"}


def sources() -> Iterator[tuple[str, str]]:
    """The text files of the project by name."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in SUFFIXES and path.is_file():
            yield name, path.read_text(encoding="utf-8")


def test_every_cited_decision_is_written_down() -> None:
    decisions = set(re.findall(r"^(\d+)\. ", (DOCS / "decisions.md").read_text(), re.MULTILINE))
    assert decisions
    for name, text in sources():
        for number in re.findall(r"decisions?(?:\.md)?,? (\d+)", text):
            assert number in decisions, f"{name} cites decision {number}"


def test_decisions_are_numbered_in_order() -> None:
    numbers = re.findall(r"^(\d+)\. ", (DOCS / "decisions.md").read_text(), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))


def test_every_linked_file_is_there() -> None:
    for name, text in sources():
        if not name.endswith(".md"):
            continue
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"


def test_glossary_names_what_is_there() -> None:
    glossary = (DOCS / "glossary.md").read_text()
    for name in re.findall(r"`([A-Za-z_]+)`", glossary):
        assert hasattr(safelight, name), name


def test_glossary_has_each_word_once() -> None:
    words = re.findall(r"^\| ([a-z ,]+) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    words = [word for row in words if row != "word" for word in row.split(", ")]
    assert len(words) == len(set(words))
    assert {"payload", "spec", "key", "ref", "item", "entry", "job", "placeholder", "asset"} <= set(
        words
    )
    assert {"probe", "derive", "decode", "load", "fetch", "materialize"} <= set(words)
