"""The scales and frames of charts. Horizontal positions are fractions of the width, so letters keep their size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from bringup.render.html.tags import Html, Inside, tag
from bringup.render.words import size

LEFT = 0.16  # fraction of the width for the labels of the scale
BASE, TOP = 172, 22  # the bottom and top of the scale, in pixels from the top
HEIGHT = BASE + 24


def across(share: float) -> str:
    """The horizontal position of a fraction of the plot, 0 to 1."""
    return f"{100 * (LEFT + (1 - LEFT) * share):.2f}%"


def wide(share: float) -> str:
    """The width of a fraction of the plot."""
    return f"{100 * (1 - LEFT) * share:.2f}%"


def up(share: float) -> float:
    """Pixels from the top for a fraction of the height, 0 at the bottom."""
    return round(BASE - (BASE - TOP) * share, 2)


def ticks(largest: float) -> list[float]:
    """Round values from 0 to at least `largest`, 3 to 6 of them: steps of 1, 2 or 5."""
    step = 10.0 ** math.floor(math.log10(largest or 1))
    step = next(step * factor for factor in (0.2, 0.5, 1, 2, 5) if largest <= 5 * step * factor)
    return [step * index for index in range(max(1, math.ceil(largest / step - 1e-9)) + 1)]


def bytes_grid(values: Sequence[float]) -> Iterator[Html]:
    """The lines of a scale in bytes: `50 MB`."""
    return grid((value / values[-1], size(value).replace(".0 ", " ") if value else "0") for value in values)


def grid(shares: Iterable[tuple[float, str]]) -> Iterator[Html]:
    """A line for each (fraction of the height, label), with the label above it on the left."""
    for share, label in shares:
        y = up(share)
        yield tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid" if share else "axis")
        yield tag("text", label, x="0", y=y - 4, class_="tick")


def chart(name: str, title: str, description: str, *shapes: Inside) -> Html:
    """An image with a description of its content."""
    ids = f"{name}-title", f"{name}-desc"
    message = tag("title", title, id=ids[0]), tag("desc", description, id=ids[1])
    picture = tag(
        "svg", *message, *shapes, id=name, class_="chart", height=HEIGHT, role="img", aria_labelledby=" ".join(ids)
    )
    return tag("figure", tag("figcaption", title), picture)


def legend(entries: Iterable[tuple[str, str, str]]) -> Html:
    """A swatch, a name and a figure for each (class, name, figure)."""
    items = (
        tag("li", tag("span", class_=f"swatch {kind}"), name, " ", tag("b", figure) if figure else None)
        for kind, name, figure in entries
    )
    return tag("ul", *items, class_="legend")
