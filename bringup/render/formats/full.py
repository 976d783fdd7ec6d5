"""`--format full`: every finding in detail, then the summary."""

from __future__ import annotations

from bringup.diagnostics import Report
from bringup.render.report import findings_text, fixable, pointer, shares, summary
from bringup.render.terminal import Paint


def render(report: Report, paint: Paint) -> str:
    """The text of a report."""
    more = "" if report.ok else f"; {pointer(report.errors)}"
    lines = [findings_text(report.findings, paint) + summary(report, paint) + more, fixable(report), shares(report)]
    return "".join(f"{line}\n" for line in lines if line)
