"""The memory of the model: when it runs, and by layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bringup.compile.estimate.sizes import Sizes
from bringup.compile.report.model_parts import PARTS, Place, places
from bringup.compile.report.record import Record
from bringup.grouping import grouped
from bringup.render.html.chart import BASE, across, bytes_grid, chart, legend, ticks, up, wide
from bringup.render.html.context import context_chart
from bringup.render.html.section import Section
from bringup.render.html.table import more, names, table
from bringup.render.html.tags import Html, tag
from bringup.render.words import size


def memory(record: Record) -> Section:
    """The memory of a run, of each layer, and of the cache for each length of context."""
    found = places(record.job.graph, record.job.plan)
    stored = sum(sum(place.nbytes.values()) for place in found)
    lead = size(stored), " of weights as they are stored, tied ones once."
    charts = tag("div", _by_layer(found), context_chart(record, stored), class_="charts")
    return Section("memory", "Memory", lead, (_memory_bars(record.sizes) if record.sizes else None, charts))


def _memory_bars(sizes: Sizes) -> Html:
    """A bar each for the memory of a run and of a compile."""
    context = f"cache for {sizes.context:,} tokens"
    run = [("weights", "weights", sizes.weights), ("packed", "packed copy of the matrices", sizes.packed)]
    run += [("cache", context, sizes.cache), ("tables", "computed tables", sizes.tables)]
    compiling = [("weights", "weights at once", sizes.compiling.weights), ("tables", "tools", sizes.compiling.tools)]
    bars = _bar("A run keeps", run), _bar("A compile keeps at most", compiling)
    return tag("div", *bars, class_="charts")


def _bar(label: str, parts: list[tuple[str, str, int]]) -> Html:
    """Adjacent segments, one for each (class, name, bytes)."""
    parts = [piece for piece in parts if piece[2]]
    total = sum(nbytes for _, _, nbytes in parts)
    pieces, at = list[Html](), 0.0
    for kind, name, nbytes in parts:
        share = 100 * nbytes / total
        tip = tag("title", f"{name}: {size(nbytes)}")
        pieces.append(tag("rect", tip, x=f"{at:.3f}%", width=f"{share:.3f}%", height="100%", class_=kind))
        at += share
    title = f"{label} {size(total)} in memory"
    message = f"{title}: " + ", ".join(f"{name} {size(nbytes)}" for _, name, nbytes in parts)
    bar = tag("svg", tag("title", message), *pieces, class_="bar", height=22, role="img")
    return tag("figure", tag("figcaption", title), bar, legend((kind, name, size(n)) for kind, name, n in parts))


def _by_layer(found: list[Place]) -> Html:
    """A stacked column for each layer."""
    largest = max((sum(place.nbytes.values()) for place in found), default=0)
    scale = ticks(largest)
    used = [part for part in PARTS if any(part in place.nbytes for place in found)]
    message = "; ".join(f"{', '.join(grouped(group))}: {_sum(first)}" for group, first in _equal(found))
    picture = chart(
        "memory-by-layer",
        "Weights by layer",
        message,
        bytes_grid(scale),
        list(_columns(found, scale[-1])),
    )
    totals = {part: sum(place.nbytes.get(part, 0) for place in found) for part in used}
    rows = (
        (names(grouped(group)), *(_part(first, part) for part in used), _sum(first)) for group, first in _equal(found)
    )
    figures = more("as a table", table(("layers, each", *used, "together"), rows))
    return tag("div", picture, legend((f"part {part}", part, size(n)) for part, n in totals.items()), figures)


def _columns(found: list[Place], top: float) -> Iterator[Html]:
    layers = [place for place in found if place.name not in ("before", "after")]
    slot = 0.72 / max(len(layers), 1)
    step = max(1, int(ticks(len(layers) / 2)[1]))
    for place in found:
        at, width = 0.0, 0.12
        if place.name == "after":
            at = 0.88
        elif place.name != "before":
            at, width = 0.14 + slot * layers.index(place), slot
        inner = min(width, 0.045)
        yield tag("g", tag("title", _summary(place)), _stack(place, top, at + (width - inner) / 2, 0.86 * inner))
        label = place.name.rpartition(".")[2]
        if not label.isdigit() or int(label) % step == 0:
            yield tag("text", label, x=across(at + width / 2), y=BASE + 16, class_="tick middle")


def _stack(place: Place, top: float, at: float, width: float) -> Iterator[Html]:
    below = 0.0
    for part in PARTS:
        share = place.nbytes.get(part, 0) / top
        if share:
            high = up(below) - up(below + share)
            yield tag("rect", x=across(at), y=up(below + share), width=wide(width), height=high, class_=f"part {part}")
        below += share


def _summary(place: Place) -> str:
    return f"{place.name}: " + ", ".join(f"{part} {size(nbytes)}" for part, nbytes in place.nbytes.items())


def _part(place: Place, part: str) -> str:
    return size(place.nbytes[part]) if part in place.nbytes else ""


def _sum(place: Place) -> str:
    return size(sum(place.nbytes.values()))


def _equal(found: Iterable[Place]) -> list[tuple[list[str], Place]]:
    """Groups of places with parts of equal size."""
    alike: dict[object, list[Place]] = {}
    for place in found:
        alike.setdefault(tuple(place.nbytes.items()), []).append(place)
    return [([place.name for place in group], group[0]) for group in alike.values()]
