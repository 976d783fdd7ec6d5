"""`--format markdown`: a report for a pull request. GitHub Flavored Markdown (github.github.com/gfm)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from html import escape
from itertools import accumulate

from bringup.diagnostics import Diagnostic, Report
from bringup.render.finding import finding_text
from bringup.render.places import file_of
from bringup.render.report import shares, summary
from bringup.render.severity import ordered
from bringup.render.terminal import Paint
from bringup.render.visible import visible
from bringup.render.words import plural

_PLAIN = Paint()
# Code, emphasis, strikethrough, mentions, issues, formulas, cells; the joint of a link; a bare address.
_MARKUP = re.compile(r"[\\`*~@#$|]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|(?<=\])[(\[]|(?<=:)(?=//)|(?<=www)(?=\.)")
_ROOM = 80  # most bytes of the last line, which counts what was omitted


def render(report: Report, paint: Paint) -> str:
    """The summary, a table of findings, and each of them in detail."""
    return "".join(_parts(report))


def within(report: Report, nbytes: int) -> str:
    """As much of `render` as fits in `nbytes` bytes of UTF-8: complete rows and findings, and the count of others."""
    parts = list(_parts(report))
    ends = list(accumulate(len(part.encode()) for part in parts))
    fit = len(parts) if ends[-1] <= nbytes else bisect_right(ends, nbytes - _ROOM)
    more = f"\n{plural(len(parts) - fit, 'part')} of this report did not fit.\n" if fit < len(parts) else ""
    return "".join(parts[:fit]) + (more if nbytes >= _ROOM else "")


def _parts(report: Report) -> Iterator[str]:
    """Pieces that are valid if later ones are omitted."""
    mark = "✅" if report.ok else "❌"
    yield f"### {mark} bringup: {text(summary(report, _PLAIN))}\n"
    if report.bytes_per_rank:
        yield f"\n{text(shares(report)).replace(chr(10), '<br>')}\n"
    listed = ordered(report.findings)
    if not listed:
        return
    yield "\n| | finding | what to do | where |\n|---|---|---|---|\n"
    for finding in listed:
        yield _row(finding)
    for finding in listed:
        yield _details(finding)


def _row(finding: Diagnostic) -> str:
    place = visible(str(finding.where)) if finding.where else file_of(finding)
    cells = f"{finding.severity} {finding.code}", finding.message, finding.help, f"`{place}`" if place else ""
    return f"| {' | '.join(map(text, cells))} |\n"


def _details(finding: Diagnostic) -> str:
    """The finding as in a terminal, in a collapsed block."""
    shown = finding_text(finding, _PLAIN)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    name = escape(f"{finding.code} {finding.parameter or ', '.join(finding.sources[:1])}".strip())
    return f"\n<details><summary>{_MARKUP.sub(_entity, name)}</summary>\n\n{fence}\n{shown}\n{fence}\n\n</details>\n"


def text(words: str) -> str:
    """Text as Markdown within a table; text between backticks is code, everything else is plain."""
    parts = words.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick: it is part of a name
        return _plain(words)
    return "".join(_code(part) if index % 2 else _plain(part) for index, part in enumerate(parts))


def _plain(words: str) -> str:
    return _MARKUP.sub(_entity, escape(words, quote=False))


def _code(words: str) -> str:
    """A code span is literal, except for a pipe, which would end the cell."""
    if not words.strip() or "|" in words or "\\" in words:
        return f"<code>{_plain(words)}</code>"
    return f"`{words}`"


def _entity(found: re.Match[str]) -> str:
    """A character that is never markup (CommonMark 0.31, 6.2); for the joint of a link, an invisible character."""
    return f"&#{ord(found[0])};" if found[0] else "<!-- -->"
