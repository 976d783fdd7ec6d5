"""Which expression is underlined, and that the line below it begins and ends where it does."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from bringup.diagnostics import Diagnostic
from bringup.render.report import findings_text
from bringup.render.snippet import WIDTH
from bringup.render.spans import span_of
from bringup.render.terminal import Paint
from bringup.spec import Site


@pytest.fixture
def spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The expression that is meant by a line of some source."""
    monkeypatch.chdir(tmp_path)

    def find(source: str, line: int) -> str | None:
        path = tmp_path / "source.py"
        path.write_text(source, "utf-8")
        span = span_of(Site(str(path), line))
        if span is None:
            return None
        lines = list(span.lines)
        lines[-1] = lines[-1][: span.end_column]
        lines[0] = lines[0][span.column :]
        assert source.splitlines()[span.line - 1 : span.end_line] == list(span.lines)
        return "\n".join(lines)

    return find


@pytest.mark.parametrize(
    ("source", "line", "expected"),
    [
        ("a['x'] = S('y')  # why\n", 1, "S('y')"),
        ("def f():\n\tself.q = Linear('out in', n=1); self.k = 2\n", 2, "2"),
        ("class A:\n    def f(self):\n        a.drop('x', why='y')\n", 3, "a.drop('x', why='y')"),
        ("a['é'] = S('層') ; b = 1\n", 1, "1"),
        ("a['層'] = S('é', '🙂')\n", 1, "S('é', '🙂')"),
        ("self.h = [Block(c, i) for i in range(3)]\n", 1, "[Block(c, i) for i in range(3)]"),
        ("a['x'] = cat(\n    S('p'),\n    S('q'),\n)\n", 1, "cat(\n    S('p'),\n    S('q'),\n)"),
        ("a, b = (\n    Linear('x'),\n    Linear('y', z=S('w')),\n)\n", 3, "Linear('y', z=S('w'))"),
        ("return Param('x')\n", 1, "Param('x')"),
        ("for L in range(3):\n    pass\n", 1, "for L in range(3):"),
        ("    this is no Python\n", 1, "this is no Python"),
        ("x = 1\n\n", 2, None),
        ("x = 1\n", 7, None),
    ],
)
def test_the_expression_of_a_line(spelled, source: str, line: int, expected: str | None) -> None:
    assert spelled(source, line) == expected


def test_a_file_that_changes_is_read_again(spelled) -> None:
    assert spelled("a = S('x')\n", 1) == "S('x')"
    assert spelled("a['yy'] = S('zz')\n", 1) == "S('zz')"


def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, line: int = 1) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text(source, "utf-8")
    linecache.clearcache()
    finding = Diagnostic(code="BU102", message="m", where=Site(str(tmp_path / "s.py"), line))
    return findings_text([finding], Paint()).splitlines()[2:-1]


def columns(text: str) -> int:
    """By hand, for the characters of these tests: kana and emoji take two columns, an acute accent none."""
    return sum(0 if c == "\u0301" else 2 if c in "層の🙂" else 1 for c in text)


@pytest.mark.parametrize("before", ["a = ", "a['層の'] = ", "a['e\u0301'] = ", "a['🙂'] = "])
@pytest.mark.parametrize("inside", ["S('x')", "S('層')", "S('e\u0301🙂')"])
def test_underlined_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, inside: str) -> None:
    _, source, under = shown(tmp_path, monkeypatch, f"{before}{inside}  # more\n")
    assert source == f"1 | {before}{inside}  # more"
    assert under == f"  | {' ' * columns(before)}{'^' * columns(inside)} the rule"


def test_a_tab_is_four_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source, under = shown(tmp_path, monkeypatch, "if a:\n\tb = S('x',\t'y')\n", 2)
    assert (source, under) == ("2 |     b = S('x',    'y')", "  |         ^^^^^^^^^^^^^^ the rule")


@pytest.mark.parametrize("before", [0, 10, 100, 119, 120, 500, 100_000])
@pytest.mark.parametrize("inside", [1, 50, 200])
@pytest.mark.parametrize("behind", [0, 30, 500])
def test_a_long_line_is_cut_around_the_expression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, inside: int, behind: int
) -> None:
    line = f"a['{'b' * before}'] = '{'c' * inside}' #{'d' * behind}"
    _, source, under = shown(tmp_path, monkeypatch, line + "\n")
    text, marks = source.removeprefix("1 | "), under.removeprefix("  | ").removesuffix(" the rule")
    assert len(text.strip("…")) <= WIDTH
    assert text.strip("…") in line
    start = marks.index("^")
    assert text[start] == "'"
    assert set(text[start : len(marks)].strip("'…")) <= {"c"}
    if inside <= WIDTH - 20:
        assert text[start : len(marks)] == f"'{'c' * inside}'"
    assert text == line or len(line) > WIDTH


def test_a_long_expression_is_quoted_by_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["a = cat(", *(f"    S('{k}')," for k in range(20)), ")"]
    _, *source = shown(tmp_path, monkeypatch, "\n".join(lines))
    assert source == [
        " 1 | / a = cat(",
        " 2 | |     S('0'),",
        " 3 | |     S('1'),",
        "   | | …",
        "21 | |     S('19'),",
        "22 | | )",
        "   | |_^ the rule",
    ]


def test_controls_in_source_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source, under = shown(tmp_path, monkeypatch, "a = S('\x1b[31m')\n")
    assert source == "1 | a = S('\\x1b[31m')"
    assert under == "  |     ^^^^^^^^^^^^^ the rule"
