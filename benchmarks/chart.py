"""A PNG of a CSV file that `benchmarks.growth` writes, with a panel for each part. The horizontal axis is logarithmic.

    python -m benchmarks.chart docs/cpu-performance.csv docs/cpu-performance.png

Needs `pip install matplotlib`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

PANELS = {  # title, label of the axis across, label of the axis up
    "decode": ("decode by context", "keys", "ms for a token"),
    "prefill": ("prefill by length", "tokens of the prompt", "ms"),
    "batch": ("decode by batch", "sequences", "ms for a step"),
    "compile": ("compile by layers", "layers", "ms"),
    "parameters": ("compile by parameters", "million parameters", "ms"),
}
COLUMNS, WIDTH, HEIGHT, DPI = 2, 4.6, 3.2, 110  # panels a row; inches of a panel


def main(source: str, target: str) -> None:
    with Path(source).open(encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row and row[0] in PANELS]
    parts = [part for part in PANELS if any(row[0] == part for row in rows)]
    lines = -(-len(parts) // COLUMNS)
    with mpl.rc_context({"font.size": 9, "svg.hashsalt": "bringup"}):
        figure = Figure((COLUMNS * WIDTH, lines * HEIGHT), layout="constrained")
        for number, part in enumerate(parts):
            _panel(figure.add_subplot(lines, COLUMNS, number + 1), part, [row for row in rows if row[0] == part])
        figure.savefig(target, dpi=DPI, metadata={"Software": None})


def _panel(axes: Any, part: str, rows: Sequence[Sequence[str]]) -> None:
    title, across, up = PANELS[part]
    lines: dict[str, list[tuple[float, float]]] = {}
    for _, model, at, value, *_ in rows:
        lines.setdefault(model, []).append((float(at), float(value)))
    for model, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3.5, label=model)
    axes.set(title=title, xlabel=across, ylabel=up, xscale="log")
    axes.set_xticks(sorted({x for points in lines.values() for x, _ in points}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(0, 1.1 * max(y for points in lines.values() for _, y in points))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(visible=True, alpha=0.25)
    axes.legend(frameon=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
