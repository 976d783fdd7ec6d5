"""Words and figures in rows, and what opens to show more of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bringup.render.html.tags import Html, Inside, code, tag


def table(heads: Sequence[str], rows: Iterable[Iterable[Inside]], *, numbers: Callable[[int], bool] = bool) -> Html:
    """A table; `numbers` says which columns are figures: all but the first, unless told otherwise."""
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
    """What opens when it is asked for, also without a script."""
    return tag("details", tag("summary", summary), *inside, **attributes)


def more(summary: str, *inside: Inside) -> Html:
    """Figures behind a picture or a line, for those who want them."""
    return folded(summary, *inside, class_="more")


def names(grouped: Iterable[str]) -> Html:
    """Names in the machine's letters, with commas."""
    return tag("span", *((", " if k else "", code(name)) for k, name in enumerate(grouped)))
