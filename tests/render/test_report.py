"""What findings look like in every format, character by character."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.diagnostics import Diagnostic, Report, Severity
from bringup.render.formats.by_name import render
from bringup.render.report import findings_text
from bringup.render.terminal import Paint
from bringup.spec import Site

PLAIN = Paint()

SHAPE = Diagnostic(
    code="BU102",
    message="`h.{0..11}.mlp.c_fc.weight` is [768, 3072], the rule expects [3072, 768]",
    help="the checkpoint stores [in, out]; write that, the transpose follows",
    parameter="transformer.h.{0..11}.mlp.c_fc.weight",
    sources=("h.0.mlp.c_fc.weight", "h.1.mlp.c_fc.weight"),
    expected="[3072, 768]",
    actual="float16 [768, 3072]",
    file="model.safetensors",
)
UNREAD = Diagnostic(code="BU105", message="no rule reads the tensor `x` [3]", sources=("x",))
SQUARE = Diagnostic(
    code="BU107", severity=Severity.WARNING, message="`c_proj.weight` is square", help="run `bringup verify`"
)
COUNTS = {"parameters": 149, "tensors": 160, "consumed": 148, "dropped": 12}


@pytest.fixture
def sited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Diagnostic:
    """SHAPE, with a rule and a declaration that can be shown."""
    (tmp_path / "rules.py").write_text("if 1:\n\n    S(name)  # here\n")
    (tmp_path / "graph.py").write_text("\n" * 119 + "Param()\n")
    monkeypatch.chdir(tmp_path)
    facts = {name: getattr(SHAPE, name) for name in Diagnostic.__dataclass_fields__}
    rule, param = Site(str(tmp_path / "rules.py"), 3), Site(str(tmp_path / "graph.py"), 120)
    return Diagnostic(**facts | {"where": rule, "declared": param})


def test_full_shows_the_rule_and_the_parameter(sited: Diagnostic) -> None:
    assert findings_text([sited], PLAIN) == (
        "error[BU102]: `h.{0..11}.mlp.c_fc.weight` is [768, 3072], the rule expects [3072, 768]\n"
        "   --> rules.py:3:5\n"
        "    |\n"
        "  3 |     S(name)  # here\n"
        "    |     ^^^^^^^ the rule\n"
        "   --> graph.py:120:1\n"
        "    |\n"
        "120 | Param()\n"
        "    | ------- the parameter\n"
        "   --> model.safetensors\n"
        "    = actual: float16 [768, 3072]\n"
        "    = help: the checkpoint stores [in, out]; write that, the transpose follows\n\n"
    )


def test_full_without_sites() -> None:
    assert findings_text([UNREAD], PLAIN) == "error[BU105]: no rule reads the tensor `x` [3]\n\n"


def test_a_site_whose_source_is_gone_is_still_named(sited: Diagnostic, tmp_path: Path) -> None:
    (tmp_path / "rules.py").unlink()
    text = findings_text([sited], PLAIN)
    assert "   --> rules.py:3\n   --> graph.py:120:1\n" in text


def test_concise_is_one_line_each_errors_first(sited: Diagnostic) -> None:
    assert render("concise", Report("gpt2", [SQUARE, sited, UNREAD])).splitlines() == [
        "rules.py:3: error[BU102] `h.{0..11}.mlp.c_fc.weight` is [768, 3072], the rule expects [3072, 768]"
        " (the checkpoint stores [in, out]; write that, the transpose follows)",
        "error[BU105] no rule reads the tensor `x` [3]",
        "warning[BU107] `c_proj.weight` is square (run `bringup verify`)",
        "gpt2: 2 errors, 1 warning",
    ]


def test_summary_of_a_fit() -> None:
    report = Report("gpt2", counts=COUNTS)
    fits = "gpt2: 149 parameters, 160 tensors, 148 read, 12 dropped — fits"
    assert render("full", report) == f"{fits}\n"
    report.findings.append(SQUARE)
    assert render("full", report).endswith(f"{fits} (1 warning)\n")
    report.bytes_per_rank = [1500, 1500]
    assert render("concise", report).endswith(f"{fits} (1 warning)\n2 ranks: 1.5 kB each\n")


def test_summary_of_mistakes() -> None:
    report = Report("gpt2", [SQUARE, SHAPE, UNREAD], COUNTS)
    said = "gpt2: 2 errors, 1 warning"
    assert render("full", report).splitlines()[-1] == f"{said}; `bringup explain BU102` has more"
    assert render("concise", report).splitlines()[-1] == said


def test_colour_only_where_it_is_wanted() -> None:
    assert "\x1b" not in findings_text([SHAPE], PLAIN)
    assert findings_text([SHAPE], Paint(True)).startswith("\x1b[1;31merror[BU102]\x1b[0m: ")
