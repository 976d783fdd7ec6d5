"""The output for a step of GitHub Actions without an option: annotations, and a table in its summary."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bringup.diagnostics import Report
from bringup.render.annotations import workflow_commands
from bringup.render.formats.markdown import within
from bringup.render.visible import harmless_report

SUMMARY_LIMIT = 1 << 20  # bytes for each step; the runner drops a longer summary completely


def tell_github(report: Report, *, annotate: bool = True) -> None:
    """Annotations are written to stderr, where they do not interfere with a format; the runner reads both streams."""
    if annotate:
        sys.stderr.write(workflow_commands(report.findings))
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if file:
        path = Path(file)
        written = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8") as summary:
            summary.write(within(harmless_report(report), SUMMARY_LIMIT - written))
