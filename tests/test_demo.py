"""The demonstration: what it prints is what happened, and a difference is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from safelight import demo

pytest.importorskip("transformers", reason="needs the hf extra")
pytestmark = pytest.mark.timeout(180)


def _rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line[:1].isdigit()]


def test_a_second_run_decodes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.run() == 0
    out = capsys.readouterr().out
    header, *_ = out.splitlines()
    assert header.split()[:4] == ["turn", "images", "decoded", "served"]
    counts = [[row[0], *map(int, row[1:4])] for row in _rows(out)]
    assert counts == [
        ["1.1", 1, 1, 0],
        ["1.2", 2, 1, 1],
        ["1.3", 3, 1, 2],
        ["1.4", 4, 1, 3],
        ["2.1", 1, 0, 1],
        ["2.2", 2, 0, 2],
        ["2.3", 3, 0, 3],
        ["2.4", 4, 0, 4],
    ]
    assert [row[-1] for row in _rows(out)] == ["yes"] * 8
    assert "equal those of the plain transformers processor" in out


@pytest.mark.parametrize("name", ["input_ids", "pixel_values", "image_grid_thw"])
def test_a_difference_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    eager, conversation = demo._eager, demo._conversation

    def one_request() -> Iterator[Any]:
        yield next(iter(conversation()))

    def different(*arguments: Any) -> dict[str, Any]:
        outputs = dict(eager(*arguments))
        outputs[name] = outputs[name].copy()
        outputs[name].flat[-1] += 1
        return outputs

    monkeypatch.setattr(demo, "_conversation", one_request)
    monkeypatch.setattr(demo, "_eager", different)
    assert demo.run() == 1
    out = capsys.readouterr().out
    assert [row[-1] for row in _rows(out)] == ["NO", "NO"]
    assert "differ from those of the plain processor" in out
