"""`--format concise`: one line for each finding, for editors and CI: `adapters/gpt2.py:14: error[BU102] …`."""

from __future__ import annotations

from bringup.diagnostics import Diagnostic, Report
from bringup.render.places import file_of
from bringup.render.report import fixable, shares, summary
from bringup.render.severity import STYLE, mark, ordered
from bringup.render.terminal import Paint
from bringup.render.visible import visible


def render(report: Report, paint: Paint) -> str:
    """The text of a report."""
    lines = [
        *(_line(finding, paint) for finding in ordered(report.findings)),
        summary(report, paint),
        fixable(report),
        shares(report),
    ]
    return "".join(f"{line}\n" for line in lines if line)


def _line(finding: Diagnostic, paint: Paint) -> str:
    """A finding; the fix follows the message."""
    place = visible(str(finding.where)) if finding.where else file_of(finding)
    head = paint(f"{finding.severity}[{finding.code}]", STYLE[finding.severity])
    advice = f" ({finding.help})" if finding.help else ""
    return f"{f'{place}: ' if place else ''}{head} {mark(finding)}{finding.message}{advice}"
