"""`--format github`: annotations on the lines of a pull request."""

from __future__ import annotations

from bringup.diagnostics import Report
from bringup.render.annotations import workflow_commands
from bringup.render.terminal import Paint


def render(report: Report, paint: Paint) -> str:
    """The annotations of a report; "" without findings."""
    return workflow_commands(report.findings)
