"""The exception tree: its shape, its messages, and that it travels."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import safelight
from safelight import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]
LOCATED = [cls for cls in CLASSES if hasattr(cls, "at")]

FIELDS: dict[str, Any] = {
    "modality": "image",
    "index": 3,
    "limit": 10,
    "actual": 11,
    "format": "PNG",
    "size": (4, 3),
    "hashes": ("ab", "cd"),
}


def make(cls: type[errors.SafelightError]) -> errors.SafelightError:
    return cls("a message", **{name: FIELDS[name] for name in cls._fields})


def test_the_tree_is_as_it_is_drawn() -> None:
    drawn: dict[str, tuple[str, str | None]] = {}
    parents = ["SafelightError"]
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(r"    ([│ ]*[├└]── )(\w+) +(?:\((\w+)\))?.*", line)
        if match:
            prefix, name, also = match.groups()
            depth = len(prefix) // 4
            drawn[name] = (parents[depth - 1], also)
            parents[depth:] = [name]
    assert {"SafelightError", *drawn} == set(errors.__all__)
    for name, (parent, also) in drawn.items():
        cls = getattr(errors, name)
        assert issubclass(cls, getattr(errors, parent)), name
        if also is not None:
            assert issubclass(cls, {"ValueError": ValueError, "RuntimeError": RuntimeError}[also])


@pytest.mark.parametrize("cls", CLASSES)
def test_everything_is_a_safelight_error(cls: type[errors.SafelightError]) -> None:
    assert issubclass(cls, errors.SafelightError)
    assert getattr(safelight, cls.__name__) is cls
    assert cls.__doc__


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_travel_with_their_attributes(cls: type[errors.SafelightError]) -> None:
    error = make(cls)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is cls
        assert str(twin) == str(error)
        assert twin.message == "a message"
        for name in cls._fields:
            assert getattr(twin, name) == FIELDS[name]


@pytest.mark.parametrize("cls", CLASSES)
def test_attributes_default_to_unknown(cls: type[errors.SafelightError]) -> None:
    error = cls("a message")
    assert str(error) == error.message == "a message"
    for name in cls._fields:
        assert getattr(error, name) in (None, ())
    assert str(cls()) == ""


@pytest.mark.parametrize("cls", LOCATED)
def test_an_error_is_placed_by_a_copy(cls: Any) -> None:
    amounts = {name: FIELDS[name] for name in ("limit", "actual") if name in cls._fields}
    error = cls("a message", **amounts)
    placed = error.at("video", 0)
    assert type(placed) is cls
    assert str(placed) == "video 0: a message"
    assert (placed.modality, placed.index) == ("video", 0)
    assert (error.modality, error.index, str(error)) == (None, None, "a message")
    for name, amount in amounts.items():
        assert getattr(placed, name) == amount
    # Placed again, it is at its last place only.
    assert str(placed.at("image", 7)) == "image 7: a message"


def test_a_modality_alone_is_told_too() -> None:
    assert str(errors.MediaError("a message", modality="image")) == "image: a message"


def test_errors_import_nothing_of_ours() -> None:
    source = Path(errors.__file__).read_text()
    assert "safelight" not in re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE)


def test_errors_of_the_compiled_part_are_these_classes() -> None:
    with pytest.raises(errors.HeaderError) as caught:
        safelight.probe(b"\xff\xd8\xff")
    assert type(caught.value) is errors.HeaderError
    assert str(caught.value)


def test_errors_cross_process_borders() -> None:
    program = (
        "import pickle, sys\n"
        "from safelight import LimitError\n"
        "error = LimitError('too large', limit=1, actual=2).at('image', 3)\n"
        "sys.stdout.buffer.write(pickle.dumps(error))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=60
    )
    error = pickle.loads(answer.stdout)
    assert (str(error), error.limit, error.actual) == ("image 3: too large", 1, 2)
