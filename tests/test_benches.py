"""The report of `make bench` reads what pytest-benchmark and criterion write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from report import Row, duration, python_rows, rust_rows, table


def write_criterion(folder: Path, group: str, function: str, value: str | None, ns: float) -> None:
    place = folder / group / function / "new"
    place.mkdir(parents=True)
    bench = {"group_id": group, "function_id": function, "value_str": value}
    (place / "benchmark.json").write_text(json.dumps(bench))
    (place / "estimates.json").write_text(json.dumps({"median": {"point_estimate": ns}}))


def test_criterion_groups_become_one_row_for_each_baseline(tmp_path: Path) -> None:
    write_criterion(tmp_path, "lru get", "ours", None, 20.0)
    write_criterion(tmp_path, "lru get", "HashMap", "0.5", 10.0)
    write_criterion(tmp_path, "key", "ours", None, 10.0)
    write_criterion(tmp_path, "key", "sha2", "3", 20.0)
    write_criterion(tmp_path, "key", "ring", "2", 20.0)
    rows = {row.name: row for row in rust_rows(tmp_path)}
    assert {name: (row.ratio, row.target, row.is_reached) for name, row in rows.items()} == {
        "lru get": (pytest.approx(0.5), 0.5, True),
        "key (sha2)": (pytest.approx(2.0), 3.0, False),
        "key (ring)": (pytest.approx(2.0), 2.0, True),
    }


def test_python_comparisons_become_rows(tmp_path: Path) -> None:
    comparison: dict[str, Any] = {"name": "key, 64 B", "baseline_s": 3e-6, "ours_s": 1e-6}
    results = tmp_path / "python.json"
    bench = {"extra_info": {"comparison": comparison | {"ratio": 3.0, "target": 2.5}}}
    results.write_text(json.dumps({"benchmarks": [bench]}))
    assert python_rows(results) == [Row("Python", "key, 64 B", 3e-6, 1e-6, 2.5)]
    assert python_rows(tmp_path / "missing.json") == []


def test_table_says_which_target_is_short() -> None:
    lines = table([Row("Rust", "a", 2.0, 1.0, 2.0), Row("Rust", "b", 1.0, 2.0, 0.51)]).splitlines()
    assert [line.split("|")[-2].strip() for line in lines[2:]] == ["reached", "SHORT"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.0, "2 s"), (0.0125, "12.5 ms"), (3e-6, "3 µs"), (2.34e-7, "234 ns")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
