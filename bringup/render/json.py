"""A report for programs: the words of `check --format json`."""

from __future__ import annotations

import json

from bringup.diagnostics import Report
from bringup.render.report import ordered


def as_json(report: Report, **more: object) -> str:
    """`more` are keys beside those that every report has."""
    found: dict[str, object] = {
        "ok": report.ok,
        "model": report.model,
        "findings": [finding.as_json() for finding in ordered(report.findings)],
        "counts": report.counts,
        "seconds": round(report.seconds, 6),
    }
    return json.dumps(found | more, indent=2)
