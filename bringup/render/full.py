"""A finding as rustc shows one: what is wrong, the rule's line, the parameter's line, and what to do."""

from __future__ import annotations

import linecache
from collections.abc import Iterator

from bringup.diagnostics import Diagnostic, Severity
from bringup.render.terminal import Paint
from bringup.spec import Site

STYLE = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def full(finding: Diagnostic, paint: Paint) -> str:
    """Several lines, without a newline at the end."""
    style = STYLE[finding.severity]
    sites = [(finding.where, "^ the rule", style), (finding.declared, "- the parameter", "blue")]
    shown = [(site, label, color) for site, label, color in sites if site]
    margin = max((len(str(site.line)) for site, _, _ in shown), default=1)
    head = paint(f"{finding.severity}[{finding.code}]", style)
    lines = [f"{head}: {paint(finding.message, 'bold')}"]
    for site, label, color in shown:
        lines += _snippet(site, label, color, margin, paint)
    for name, text in _facts(finding):
        lines.append(f"{' ' * margin} {paint('=', 'blue')} {paint(name, 'bold')}: {text}")
    return "\n".join(lines)


def _snippet(site: Site, label: str, color: str, margin: int, paint: Paint) -> Iterator[str]:
    """Where a site is, and its line of source, underlined with the label's first character."""
    source = linecache.getline(site.file, site.line).rstrip()
    yield f"{' ' * margin}{paint('-->', 'blue')} {site}"
    if not source:
        return
    bar, text = paint("|", "blue"), source.lstrip()
    indent = " " * (len(source) - len(text))
    yield f"{' ' * margin} {bar}"
    yield f"{paint(str(site.line).rjust(margin), 'blue')} {bar} {source}"
    yield f"{' ' * margin} {bar} {indent}{paint(label[0] * (len(text) - 1) + label, color)}"


def _facts(finding: Diagnostic) -> Iterator[tuple[str, str]]:
    """What the message does not say already."""
    for name in ("file", "expected", "actual"):
        text: str = getattr(finding, name)
        if text and text not in finding.message:
            yield name, text
    if finding.help:
        yield "help", finding.help
