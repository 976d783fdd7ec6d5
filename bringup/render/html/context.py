"""The growth of the cache with the context."""

from __future__ import annotations

from bringup.compile.report.record import Record
from bringup.render.html.chart import BASE, across, bytes_grid, chart, ticks, up
from bringup.render.html.tags import Html, tag
from bringup.render.words import size


def context_chart(record: Record, weights: int) -> Html | None:
    """Bytes of cache for each length of context; marks show the compiled length and the size of the weights."""
    per_token, longest = record.job.graph.state_bytes(), record.job.graph.config.max_positions
    if not per_token:
        return None
    scale, largest = ticks(per_token * longest), per_token * longest
    lengths = [longest * quarter / 4 for quarter in range(5)]
    ahead = weights / per_token
    message = f"{size(per_token)} a token, {size(per_token * record.context)} for the {record.context:,} tokens chosen"
    message += f", {size(largest)} for all {longest:,} positions of the model. " if record.context < longest else ". "
    message += f"It is as large as the weights at {ahead:,.0f} tokens." if ahead <= longest else ""
    shapes = [
        bytes_grid(scale),
        *(_length(length, longest) for length in lengths),
        tag("line", x1=across(0), y1=up(0), x2=across(1), y2=up(largest / scale[-1]), class_="line"),
    ]
    if ahead <= longest:
        at, height = across(ahead / longest), up(weights / scale[-1])
        shapes.append(tag("line", x1=at, x2=at, y1=up(0), y2=height, class_="mark"))
        shapes.append(tag("circle", tag("title", "as large as the weights"), cx=at, cy=height, r=4, class_="weights"))
    at, height = across(record.context / longest), up(per_token * record.context / scale[-1])
    shapes.append(tag("circle", tag("title", f"{record.context:,} tokens"), cx=at, cy=height, r=5, class_="cache"))
    picture = chart("cache-by-context", "Cache by length of context", message, *shapes)
    return tag("div", picture, tag("p", message, class_="note"))


def _length(length: float, longest: int) -> Html:
    kind = "tick end" if length == longest else "tick middle"
    return tag("text", f"{length:,.0f}", x=across(length / longest), y=BASE + 16, class_=kind)
