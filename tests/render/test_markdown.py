"""Markdown as a parser of CommonMark and of GitHub's tables reads it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from bringup.diagnostics import Diagnostic, Report
from bringup.render.formats.by_name import render
from bringup.render.severity import ordered
from bringup.render.visible import visible
from tests.render.reports import REPORTS

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
ALLOWED = {"h3", "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "p", "details", "summary", "br"}


def rows(text: str) -> list[list[str]]:
    """The cells of the table's body, as somebody sees them."""
    html = PARSER.render(text)
    body = html.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [seen(cell) for cell in re.findall("<td>(.*?)</td>", row, re.S)]
        for row in re.findall("<tr>(.*?)</tr>", body, re.S)
    ]


def seen(html: str) -> str:
    return unescape(re.sub("<[^>]*>", "", html))


def plain(words: str) -> str:
    """The words without the backticks that make code of names."""
    return words.replace("`", "")


@pytest.mark.parametrize("report", REPORTS)
def test_the_table_has_a_row_for_each_finding(workspace: Path, report: str) -> None:
    original = REPORTS[report]()
    text = render("markdown", original)
    html = PARSER.render(text)
    assert set(re.findall("<([a-z0-9]+)", html)) <= ALLOWED
    assert "<a " not in html
    assert html.count("<details>") == html.count("</details>") == len(original.findings)
    assert text.startswith("### ✅ " if original.ok else "### ❌ ")
    for row, finding in zip(rows(text), ordered(original.findings), strict=True):
        assert len(row) == 4
        assert row[0] == f"{finding.severity} {finding.code}"
        assert plain(row[1]) == plain(visible(finding.message))
        assert plain(row[2]) == plain(visible(finding.help))


def test_the_whole_finding_is_folded_away(workspace: Path) -> None:
    text = render("markdown", REPORTS["many"]())
    fences = [token.content for token in PARSER.parse(text) if token.type == "fence"]
    full = render("full", REPORTS["many"]()).rstrip().split("\n\n")[:-1]
    assert [fence.rstrip("\n") for fence in fences] == full


NAMES = st.text(st.sampled_from("a`|\\<>&*_[]()!~#@$:/.-+{}\n \"'w"), max_size=20)


@given(name=NAMES, help=NAMES)
@example(name="a", help="[x](https://w.w) ![y](https://w.w/z.png) [x][y]")
@example(name="a`[x](w)`b", help="<https://w.w> https://w.w www.w.w *a* _b_ ~~c~~ &lt;")
def test_no_name_breaks_out(name: str, help: str) -> None:
    finding = Diagnostic(code="BU105", message=f"no rule reads the tensor `{name}` [3]", help=help, parameter=name)
    text = render("markdown", Report("tiny", [finding]))
    html = PARSER.render(text)
    assert set(re.findall("<([a-z0-9]+)", html)) <= ALLOWED - {"br"}
    (row,) = rows(text)
    assert len(row) == 4
    assert "".join(plain(row[1]).split()) == "".join(plain(visible(finding.message)).split())
    assert "".join(plain(row[2]).split()) == "".join(plain(visible(help)).split())
