"""The findings of the check and of the command."""

from __future__ import annotations

from bringup.compile.report.record import Record
from bringup.diagnostics import Diagnostic, Severity
from bringup.render.html.section import Section
from bringup.render.html.source import line_of
from bringup.render.html.tags import Html, Inside, code, tag
from bringup.render.places import file_of
from bringup.render.severity import ordered
from bringup.render.words import plural


def findings(record: Record) -> Section:
    """Errors first, each with its lines of source and the fix."""
    listed = ordered(record.findings)
    numbers = [(severity, sum(f.severity is severity for f in listed)) for severity in Severity]
    message = ", ".join(plural(number, str(severity)) for severity, number in numbers if number)
    nothing = "Every parameter is complete; every tensor is read completely or dropped with a reason."
    return Section("findings", "Findings of the check", message or nothing, tuple(map(_finding, listed)))


def _finding(finding: Diagnostic) -> Html:
    head = tag("h3", tag("span", f"{finding.severity} {finding.code}", class_="mark"), " ", backticked(finding.message))
    facts: list[tuple[str, Inside]] = []
    facts += [(finding.where_label, line_of(finding.where))] if finding.where else []
    facts += [("the parameter", line_of(finding.declared))] if finding.declared else []
    known = {"file": file_of(finding), "expected": finding.expected, "actual": finding.actual}
    facts += [(label, code(message)) for label, message in known.items() if message and message not in finding.message]
    facts += [("help", backticked(finding.help))] if finding.help else []
    facts += [("more", code(f"bringup explain {finding.code}"))]
    listed = tag("dl", *((tag("dt", label), tag("dd", message)) for label, message in facts), class_="facts")
    return tag("article", head, listed, class_=f"finding {finding.severity}")


def backticked(message: str) -> Html:
    """A message whose names are in backticks."""
    pieces = message.split("`")
    return tag("span", *(code(piece) if k % 2 else piece for k, piece in enumerate(pieces)))
