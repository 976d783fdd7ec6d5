"""The stages of the command as a waterfall chart."""

from __future__ import annotations

import re

from bringup.compile.report.record import Record, StageResult
from bringup.render.html.section import Section
from bringup.render.html.tags import Html, tag
from bringup.render.words import seconds

_HIT = re.compile("(all|,) from the cache|shared with|up to date")  # results that were available already


def stages(record: Record) -> Section | None:
    """Each stage with its bar, its time and its result."""
    if not record.stages:
        return None
    rows = (_row(stage, record.seconds) for stage in record.stages)
    slowest = max(record.stages, key=lambda stage: stage.seconds)
    lead = tag("time", seconds(record.seconds)), " in all; the longest stage is ", slowest.name, "."
    return Section("stages", "Stages", lead, (tag("ol", *rows, class_="waterfall"),))


def _row(stage: StageResult, total: float) -> Html:
    start, width = (100 * min(value / total, 1.0) if total else 0.0 for value in (stage.start, stage.seconds))
    kind = "failed" if stage.failed else "cached" if _HIT.search(stage.result) else "run"
    shapes = (
        tag("rect", width="100%", height="100%", rx=3, class_="track"),
        tag("rect", x=f"{start:.2f}%", width=f"{max(width, 0.3):.2f}%", height="100%", rx=3, class_=kind),
    )
    return tag(
        "li",
        tag("span", stage.name, class_="stage"),
        tag("svg", *shapes, height=14, aria_hidden="true"),
        tag("time", seconds(stage.seconds)),
        tag("span", "failed" if stage.failed else stage.result, class_="result"),
    )
