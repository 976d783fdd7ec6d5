"""The error of each module's output, compared with the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from bringup.compile.parity.parity import Difference, Layer, Parity
from bringup.compile.report.model_parts import PARTS, parts
from bringup.compile.report.record import Record
from bringup.render.html.chart import BASE, across, chart, grid, legend, up
from bringup.render.html.section import Section
from bringup.render.html.table import more, table
from bringup.render.html.tags import Html, Inside, code, tag

CROWD = 300  # modules; for more the dots are smaller
FLOOR = 1e-9  # below it, errors are drawn on the scale's bottom


def errors(record: Record) -> Section | None:
    """The result of a verification: by phase, and by module if those were compared."""
    parity = record.parity
    if parity is None:
        return None
    heads = ("phase", "rows", "largest error", "of what is allowed", "wrong top token", "too close to call", "agrees")
    lead = (
        f"Against {parity.reference}; errors are the largest difference as a share of the largest value of the "
        f"reference. Tolerance {parity.tolerance:g}{_rounding(parity)}."
    )
    shown: list[Inside] = [table(heads, map(_phase, parity.differences))]
    if parity.modules:
        shown.append(_by_module(record, parity))
    if parity.calls:
        calls = ((code(name), _error(error)) for name, error in parity.calls.items())
        shown.append(more(f"by call, {parity.target} against torch", table(("call", "error"), calls)))
    return Section("errors", "Error by layer", lead, tuple(shown))


def _rounding(parity: Parity) -> str:
    """The sentence about the logits of a model in 16 bits."""
    if parity.dtype == "float32":
        return ""
    return f" in float32; logits in {parity.dtype} may be as far off as rounding moves the reference's own"


def _phase(found: Difference) -> tuple[str, ...]:
    counts = f"{found.wrong:,}", f"{found.exempt:,}", "yes" if found.ok else "no"
    return found.phase, f"{found.rows:,}", _error(found.relative), f"{found.excess:.2g}", *counts


def _by_module(record: Record, parity: Parity) -> Html:
    known, found, tolerance = parts(record.job.graph), parity.layers, parity.tolerance
    finite = [value for value in found.values() if FLOOR < value < math.inf]
    low = math.floor(math.log10(min([*finite, tolerance])))
    high = max(math.ceil(math.log10(max([*finite, tolerance]))), low + 1)

    def height(value: float) -> float:
        return 1.0 if not value < math.inf else max(0.0, (math.log10(max(value, FLOOR)) - low) / (high - low))

    departed = next((name for name, value in found.items() if not value <= tolerance), None)
    worst = max(found, key=lambda name: height(found[name]))
    message = f"{len(found):,} modules in the order of computing; the largest error is {found[worst]:.1e}, of {worst}. "
    message += f"The first beyond the tolerance is {departed}." if departed else "All are within the tolerance."
    step = max(1, (high - low) // 5)
    scale = (((power - low) / (high - low), f"1e{power}") for power in range(low, high + 1, step))
    y = up(height(tolerance))
    bound = (
        tag("line", x1=across(0), x2="100%", y1=y, y2=y, class_="bound"),
        tag("text", f"tolerance {tolerance:g}", x="100%", y=y - 4, class_="tick end"),
    )
    dots = list(_dots(found, known, height, tolerance))
    picture = chart("error-by-module", "Error by module", message, grid(scale), dots, bound, _layers(record, found))
    used = [part for part in PARTS if any(known.get(name) == part for name in found)]
    rows = (
        (_named(layer), known.get(layer.name, "other"), *map(_error, (layer.given, layer.output, layer.alone)))
        for layer in parity.modules
    )
    heads = ("module", "part", "of its input", "of its output", "on the reference's input")
    every = more("every module", table(heads, rows, numbers=lambda column: column > 1))
    return tag(
        "div", picture, legend((f"part {part}", part, "") for part in used), tag("p", message, class_="note"), every
    )


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _dots(
    found: Mapping[str, float], known: Mapping[str, str], height: Callable[[float], float], tolerance: float
) -> Iterator[Html]:
    size = 4 if len(found) < CROWD else 2.5
    for index, (name, value) in enumerate(found.items()):
        tip = tag("title", f"{name}: {value:.1e}")
        near = value <= tolerance  # NaN is not
        kind = f"part {known.get(name, 'other')}{'' if near else ' beyond'}"
        x = across((index + 0.5) / len(found))
        yield tag("circle", tip, cx=x, cy=up(height(value)), r=size if near else size + 1.5, class_=kind)


def _named(layer: Layer) -> Inside:
    if not layer.counterpart:
        return code(layer.name)
    return tag("span", code(layer.name), ", the reference's ", code(layer.counterpart))


def _layers(record: Record, found: Mapping[str, float]) -> Iterator[Html]:
    """The number of a layer below its first module, for as many layers as there is space for."""
    path = f"{record.job.graph.layer_path}."
    starts: dict[str, int] = {}
    for index, name in enumerate(found):
        if name.startswith(path):
            starts.setdefault(name.removeprefix(path).partition(".")[0], index)
    step = max(1, round(len(starts) / 8))
    for layer, index in starts.items():
        if int(layer) % step == 0:
            yield tag("text", layer, x=across((index + 0.5) / len(found)), y=BASE + 16, class_="tick middle")
