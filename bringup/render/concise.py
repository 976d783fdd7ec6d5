"""A finding in one line that editors and CI can jump from: `adapters/gpt2.py:14: error[BU102] …`."""

from __future__ import annotations

from bringup.diagnostics import Diagnostic
from bringup.render.full import STYLE
from bringup.render.terminal import Paint


def concise(finding: Diagnostic, paint: Paint) -> str:
    """One line; what to do stands behind the message."""
    place = finding.where or finding.file
    head = paint(f"{finding.severity}[{finding.code}]", STYLE[finding.severity])
    advice = f" ({finding.help})" if finding.help else ""
    return f"{f'{place}: ' if place else ''}{head} {finding.message}{advice}"
