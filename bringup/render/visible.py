"""Escapes untrusted text: characters that could control a terminal, a log or a parser become visible."""

from __future__ import annotations

import re
from dataclasses import replace

from bringup.diagnostics import Diagnostic, Report
from bringup.shown import short

# Controls (C0, C1, DEL); characters without width or that change the direction of text (Unicode categories Cf, Zl, Zp);
# surrogates and the non-characters, which neither XML nor UTF-8 supports; and `##[`, which begins a command anywhere in
# a line of a GitHub Actions log.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]|(?<=#)#(?=\\[)"
)


# A word of more characters than a path of any system has. Names of tensors may be as long as a file.
_ENDLESS = re.compile(r"[^\s`]{5000,}")


def brief(text: str) -> str:
    """The text with every endless word cut to its beginning and its length."""
    return _ENDLESS.sub(lambda found: short(found[0]), text) if len(text) >= 5000 else text


def visible(text: str) -> str:
    """The text with every such character written as its escape: `\\x1b`, `\\u202e`."""
    if text.isprintable() and "##[" not in text:  # takes a tenth of the time
        return text
    return _HARMFUL.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def harmless(finding: Diagnostic) -> Diagnostic:
    """The finding with escaped texts, without endless words. Its sites are unchanged, because they are opened."""
    names = ("message", "help", "parameter", "expected", "actual", "file", "tensor")
    words = {name: visible(brief(getattr(finding, name))) for name in names}
    return replace(finding, sources=tuple(visible(brief(source)) for source in finding.sources), **words)


def harmless_report(report: Report) -> Report:
    """The report with escaped texts, for every format."""
    findings = [harmless(finding) for finding in report.findings]
    parameters = tuple(map(visible, report.parameters))
    return replace(report, model=visible(report.model), findings=findings, parameters=parameters)
