"""An SVG of a CSV that `benchmarks.growth` writes: a panel for each part, both axes logarithmic.

python -m benchmarks.chart docs/cpu-performance.csv docs/cpu-performance.svg
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

WIDTH, HEIGHT, LEFT, TOP = 380, 250, 60, 36  # of a panel, and where its axes begin
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df")
TITLES = {
    "decode": "decode: ms a token by context",
    "prefill": "prefill: ms by length of the prompt",
    "batch": "decode: ms a step by sequences",
    "compile": "compile: ms of the processor by layers",
}
Point = tuple[float, float]


def main(source: str, target: str) -> None:
    with Path(source).open() as file:
        rows = [row for row in csv.reader(file) if row[0] in TITLES]
    parts = [part for part in TITLES if any(row[0] == part for row in rows)]
    size = {"width": str(2 * WIDTH), "height": str(-(-len(parts) // 2) * HEIGHT)}
    font = {"font-family": "sans-serif", "font-size": "11"}
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **font})
    ET.SubElement(svg, "rect", {"width": "100%", "height": "100%", "fill": "white"})
    for number, part in enumerate(parts):
        place = f"translate({number % 2 * WIDTH},{number // 2 * HEIGHT})"
        _panel(ET.SubElement(svg, "g", {"transform": place}), part, [row for row in rows if row[0] == part])
    ET.indent(svg, " ")
    Path(target).write_text(ET.tostring(svg, encoding="unicode") + "\n", "utf-8")


def _panel(panel: ET.Element, part: str, rows: Sequence[Sequence[str]]) -> None:
    lines: dict[str, list[Point]] = {}
    for _, model, at, value, *_ in rows:
        lines.setdefault(model, []).append((float(at), float(value)))
    points = [point for line in lines.values() for point in line]
    across, up = _Axis([x for x, _ in points]), _Axis([y for _, y in points])
    width, height = WIDTH - LEFT - 20, HEIGHT - TOP - 34
    _text(panel, LEFT, 18, TITLES[part], weight="bold")
    for value in sorted({x for x, _ in points}):
        _text(panel, LEFT + across.share(value) * width, TOP + height + 18, f"{value:g}", anchor="middle")
    for value in up.ticks():
        y = TOP + height - up.share(value) * height
        line = {"x1": str(LEFT), "x2": str(LEFT + width), "y1": f"{y:.1f}", "y2": f"{y:.1f}", "stroke": "#d0d7de"}
        ET.SubElement(panel, "line", line)
        _text(panel, LEFT - 6, y + 4, f"{value:g}", anchor="end")
    for number, (model, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [(LEFT + across.share(x) * width, TOP + height - up.share(y) * height) for x, y in sorted(line)]
        listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        ET.SubElement(panel, "polyline", {"points": listed, "fill": "none", "stroke": colour, "stroke-width": "2"})
        for x, y in places:
            ET.SubElement(panel, "circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "3", "fill": colour})
        _text(panel, LEFT + 8, TOP + 12 + 14 * number, model, colour=colour)


class _Axis:
    """From the least value, or the power of two below it, to the greatest or the one above."""

    def __init__(self, values: Sequence[float]) -> None:
        self._low, self._high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
        self._high = max(self._high, self._low + 1)

    def share(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        return (math.log2(value) - self._low) / (self._high - self._low)

    def ticks(self) -> list[float]:
        return [2.0**power for power in range(self._low, self._high + 1)]


def _text(
    parent: ET.Element, x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal",
    colour: str = "#1f2328",
) -> None:  # fmt: skip
    look = {"text-anchor": anchor, "font-weight": weight, "fill": colour}
    ET.SubElement(parent, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", **look}).text = text


if __name__ == "__main__":
    main(*sys.argv[1:])
