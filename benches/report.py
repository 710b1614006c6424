"""Turn the results of one bench run into one table of ratios, on the terminal and in `benches/out`.

Reads what pytest-benchmark and criterion wrote; must never time anything itself.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benches" / "out"
CRITERION = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "criterion"


@dataclass(frozen=True)
class Row:
    """One comparison: median times of both sides, and the ratio that was to be reached."""

    side: str
    name: str
    baseline_s: float
    ours_s: float
    target: float

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.baseline_s / self.ours_s

    @property
    def is_reached(self) -> bool:
        """Whether the ratio, as it is printed, is at least the target."""
        return round(self.ratio, 2) >= self.target


def python_rows(results: Path) -> list[Row]:
    """Read the comparisons that `comparison.Comparison` recorded with pytest-benchmark."""
    if not results.exists():
        return []
    rows = []
    for bench in json.loads(results.read_text())["benchmarks"]:
        found = bench["extra_info"]["comparison"]
        rows.append(
            Row("Python", found["name"], found["baseline_s"], found["ours_s"], found["target"])
        )
    return rows


def rust_rows(folder: Path) -> list[Row]:
    """Read criterion's groups: function `ours` against each other function and its target."""
    groups: defaultdict[str, dict[str, tuple[dict[str, Any], float]]] = defaultdict(dict)
    for described in sorted(folder.rglob("new/benchmark.json")):
        bench = json.loads(described.read_text())
        estimates = json.loads((described.parent / "estimates.json").read_text())
        median_s = estimates["median"]["point_estimate"] / 1e9
        groups[bench["group_id"]][bench["function_id"]] = (bench, median_s)
    rows = []
    for group, functions in groups.items():
        _, ours_s = functions.pop("ours")
        for function, (bench, median_s) in functions.items():
            name = group if len(functions) == 1 else f"{group} ({function})"
            rows.append(Row("Rust", name, median_s, ours_s, float(bench["value_str"])))
    return rows


def duration(seconds: float) -> str:
    """Write a time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def table(rows: list[Row]) -> str:
    """Lay the rows out as a Markdown table that also reads well on a terminal."""
    cells = [["bench", "side", "baseline", "ours", "ratio", "target", ""]]
    cells += [
        [
            row.name,
            row.side,
            duration(row.baseline_s),
            duration(row.ours_s),
            f"{row.ratio:.2f}x",
            f"{row.target:g}x",
            "reached" if row.is_reached else "SHORT",
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    )


def plot(rows: list[Row], target: Path) -> None:
    """Draw each ratio as a bar on a logarithmic axis, and each target as a mark on it."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.32 * len(rows)), layout="constrained")
    places = range(len(rows))
    colors = ["tab:green" if row.is_reached else "tab:orange" for row in rows]
    # Bars start at 1x: to the right is faster than the baseline, to the left slower.
    axes.barh(places, [row.ratio - 1 for row in rows], left=1, color=colors)
    for place, row in zip(places, rows, strict=True):
        axes.annotate(f" {row.ratio:.2f}x", (max(row.ratio, row.target), place), va="center")
    axes.plot([row.target for row in rows], places, "k|", markersize=14, label="target")
    axes.set_yticks(places, [f"{row.name} · {row.side}" for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.15, y=0.01)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times faster than the baseline of the same run (median over median)")
    figure.legend(loc="outside upper right")
    figure.savefig(target, dpi=120)


def main() -> None:
    """Print the table, and write it with its data and its plot."""
    rows = python_rows(OUT / "python.json") + rust_rows(CRITERION)
    if not rows:
        raise SystemExit("no bench was run")
    OUT.mkdir(parents=True, exist_ok=True)
    text = table(rows)
    (OUT / "ratios.md").write_text(text + "\n")
    data = [{**asdict(row), "ratio": row.ratio, "is_reached": row.is_reached} for row in rows]
    (OUT / "ratios.json").write_text(json.dumps(data, indent=2) + "\n")
    plot(rows, OUT / "ratios.png")
    print(text)
    reached = sum(row.is_reached for row in rows)
    print(f"{reached} of {len(rows)} targets reached; plot and data are in benches/out")
    for counts in sorted(OUT.glob("*_instructions.md")):
        print(f"\n{counts.read_text()}")


if __name__ == "__main__":
    main()
