"""A finding in the style of rustc: the message, the rule, the parameter, the checkpoint's file, and the fix."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.diagnostics import Diagnostic
from bringup.render.places import file_of
from bringup.render.severity import STYLE, mark
from bringup.render.snippet import rows
from bringup.render.spans import span_of
from bringup.render.terminal import Paint
from bringup.render.visible import visible


def finding_text(finding: Diagnostic, paint: Paint) -> str:
    """Several lines, without a newline at the end. The texts of the finding are escaped already."""
    style = STYLE[finding.severity]
    signs = [("^", finding.where_label, style, finding.where), ("-", "the parameter", "blue", finding.declared)]
    shown = [(sign, label, color, site, span_of(site)) for sign, label, color, site in signs if site]
    last = max((span.end_line if span else site.line for *_, site, span in shown), default=0)
    indent = " " * len(str(last))
    arrow = f"{indent}{paint('-->', 'blue')}"
    head = paint(f"{finding.severity}[{finding.code}]", style)
    lines = [f"{head}: {mark(finding)}{paint(finding.message, 'bold')}"]
    for sign, label, color, site, span in shown:
        column = f":{span.column + 1}" if span else ""
        lines.append(f"{arrow} {visible(f'{site.path}:{span.line if span else site.line}')}{column}")
        if span:
            lines.append(paint(f"{indent} |", "blue"))
            for number, text, underline in rows(span, sign, label):
                lines.append(f"{paint(f'{number:>{len(indent)}} |', 'blue')} {text}{paint(underline, color)}")
    if finding.file:
        lines.append(f"{arrow} {file_of(finding)}{f': `{finding.tensor}`' if finding.tensor else ''}")
    lines += (f"{indent} {paint('=', 'blue')} {paint(name, 'bold')}: {text}" for name, text in _facts(finding))
    return "\n".join(lines)


def _facts(finding: Diagnostic) -> Iterator[tuple[str, str]]:
    """Facts that the message does not contain."""
    for name in ("expected", "actual"):
        text: str = getattr(finding, name)
        if text and text not in finding.message:
            yield name, text
    if finding.help:
        yield "help", finding.help
