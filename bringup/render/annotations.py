"""Annotations of GitHub Actions: a workflow command for each finding.

Form and escapes are those of workflow commands (docs.github.com, "Workflow commands for GitHub Actions";
actions/toolkit, packages/core/src/command.ts). A step shows ten annotations of each severity.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from bringup.codes import titles
from bringup.diagnostics import Diagnostic, Severity
from bringup.render.places import in_repository, site_in_repository
from bringup.render.spans import span_of
from bringup.render.visible import harmless, visible
from bringup.render.words import plural

LIMIT = 10
KINDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def workflow_commands(findings: Iterable[Diagnostic]) -> str:
    """A line for each finding, the worst first; if there are more than a step shows, the last line counts them."""
    listed, names = [harmless(finding) for finding in findings], titles()
    lines: list[str] = []
    for severity, kind in KINDS.items():
        alike = [finding for finding in listed if finding.severity is severity]
        shown = alike if len(alike) <= LIMIT else alike[: LIMIT - 1]
        for finding in shown:
            title = f"{finding.code} {names.get(finding.code, '')}".rstrip()
            lines.append(_command(kind, {"title": title, **_place(finding)}, _message(finding)))
        if len(shown) < len(alike):
            where = "the summary of this step" if os.environ.get("GITHUB_STEP_SUMMARY") else "the log"
            more = f"{plural(len(alike) - len(shown), f'more {severity}')} in {where}"
            lines.append(_command(kind, {"title": "bringup"}, more))
    return "".join(f"{line}\n" for line in lines)


def _place(finding: Diagnostic) -> dict[str, str | int]:
    """The position in the repository: of the rule, else the parameter, else the checkpoint's file, else none."""
    found = site_in_repository(finding.where, finding.declared)
    if found is None:
        file = in_repository(finding.file) if finding.file else None
        return {"file": visible(file)} | ({"line": finding.line} if finding.line else {}) if file else {}
    site, file = found
    span = span_of(site)
    if span is None:
        return {"file": file, "line": site.line}
    columns = {"col": span.column + 1, "endColumn": span.end_column} if span.line == span.end_line else {}
    return {"file": file, "line": span.line, "endLine": span.end_line, **columns}


def _message(finding: Diagnostic) -> str:
    return "\n".join(_sentences(finding))


def _sentences(finding: Diagnostic) -> Iterator[str]:
    yield finding.message
    for label, site in (("rule", finding.where), ("parameter", finding.declared)):
        if site:
            yield f"{label}: {visible(str(site))}"
    if finding.help:
        yield f"help: {finding.help}"


def _command(kind: str, properties: dict[str, str | int], message: str) -> str:
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{kind} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
