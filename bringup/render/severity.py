"""Findings by severity: order, colour, and the mark of those that `--fix` corrects."""

from __future__ import annotations

from collections.abc import Iterable

from bringup.diagnostics import Diagnostic, Severity

STYLE = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_ORDER = list(Severity)


def ordered(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Errors first, then warnings, then notes; otherwise in their order."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def mark(finding: Diagnostic) -> str:
    """`[*] ` before a finding that `--fix` corrects."""
    return "[*] " if finding.fixes else ""
