"""A report as text: findings, errors first, and one line that sums it up."""

from __future__ import annotations

from collections.abc import Iterable

from bringup.diagnostics import Diagnostic, Report, Severity
from bringup.render.terminal import Paint
from bringup.render.words import plural

_ORDER = list(Severity)


def ordered(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Errors first, then warnings, then notes; otherwise as they were found."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def findings_text(findings: Iterable[Diagnostic], paint: Paint, style: str = "full") -> str:
    """Every finding and a newline behind each; "" when there is none."""
    listed = ordered(findings)
    if not listed:
        return ""
    from bringup.render.concise import concise
    from bringup.render.full import full

    if style == "concise":
        return "".join(f"{concise(finding, paint)}\n" for finding in listed)
    return "".join(f"{full(finding, paint)}\n\n" for finding in listed)


def report_text(report: Report, paint: Paint, style: str) -> str:
    """Every finding, then the summary."""
    more = "" if report.ok or style == "concise" else f"; {pointer(report.errors)}"
    return findings_text(report.findings, paint, style) + summary(report, paint) + more


def summary(report: Report, paint: Paint) -> str:
    """`gpt2: 149 parameters, 160 tensors, 148 read, 12 dropped — fits`, or `gpt2: 3 errors`."""
    label = f"{report.model}: " if report.model else ""
    numbers = [(severity, sum(f.severity is severity for f in report.findings)) for severity in Severity]
    said = ", ".join(plural(count, str(severity)) for severity, count in numbers if count)
    if not report.ok:
        return label + paint(said, "red")
    counts = report.counts
    facts = [plural(counts["parameters"], "parameter"), plural(counts["tensors"], "tensor")]
    facts += [f"{counts['consumed']:,} read", f"{counts['dropped']:,} dropped"]
    return f"{label}{', '.join(facts)} — {paint('fits', 'green')}{f' ({said})' if said else ''}"


def pointer(findings: Iterable[Diagnostic]) -> str:
    """Where to read more of the first mistake."""
    return f"`bringup explain {ordered(findings)[0].code}` says more"
