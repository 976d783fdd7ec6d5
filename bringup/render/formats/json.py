"""`--format json`: a report for programs."""

from __future__ import annotations

from bringup.diagnostics import Report
from bringup.render.json_text import json_text
from bringup.render.severity import ordered
from bringup.render.terminal import Paint


def render(report: Report, paint: Paint) -> str:
    """One object. `bytes_per_rank` is present if ranks were requested, `stored_bytes_per_rank` if weights may remain
    packed, and `read_bytes_per_rank` is the number of bytes that a conversion of each rank reads."""
    found: dict[str, object] = {
        "ok": report.ok,
        "model": report.model,
        "findings": [finding.as_json() for finding in ordered(report.findings)],
        "counts": report.counts,
        "seconds": round(report.seconds, 6),
    }
    if report.bytes_per_rank:
        found["bytes_per_rank"] = report.bytes_per_rank
    if report.stored_bytes_per_rank:
        found["stored_bytes_per_rank"] = report.stored_bytes_per_rank
    if report.read_bytes_per_rank:
        found["read_bytes_per_rank"] = report.read_bytes_per_rank
    return json_text(found)
