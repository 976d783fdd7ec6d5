"""Tables, and blocks that expand to show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bringup.render.html.tags import Html, Inside, code, tag


def table(heads: Sequence[str], rows: Iterable[Iterable[Inside]], *, numbers: Callable[[int], bool] = bool) -> Html:
    """A table; `numbers` is true for columns of figures: by default all except the first."""
    kinds = ["number" if numbers(column) else None for column in range(len(heads))]
    top = tag("tr", *(tag("th", head, scope="col", class_=kind) for head, kind in zip(heads, kinds, strict=True)))
    body = (
        tag(
            "tr",
            *(
                tag("td", cell, class_=kind, data_label=head)
                for cell, kind, head in zip(row, kinds, heads, strict=True)
            ),
        )
        for row in rows
    )
    return tag("div", tag("table", tag("thead", top), tag("tbody", *body)), class_="scroll")


def folded(summary: Inside, *inside: Inside, **attributes: str | float | None) -> Html:
    """A block that expands on a click, without a script."""
    return tag("details", tag("summary", summary), *inside, **attributes)


def more(summary: str, *inside: Inside) -> Html:
    """A collapsed block with the figures of a chart or a line."""
    return folded(summary, *inside, class_="more")


def names(grouped: Iterable[str]) -> Html:
    """Names in a monospaced font, with commas."""
    return tag("span", *((", " if k else "", code(name)) for k, name in enumerate(grouped)))
