"""A renamed module of a quantised checkpoint has the finding that it has in floats, and its rule is corrected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.fix.pyfile import PyFile
from bringup.compile.fix.search import add_fixes
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import Report
from tests.cli.adapters import LLAMA, LOOPS
from tests.quantised.checkpoints import plain, write
from tests.quantised.formats import FORMATS
from tests.quantised.int4_formats import FORMATS as INT4

FORMS = {**FORMATS, **INT4}
FEW = ("fp8-tensor", "modelopt-nvfp4", "ct-int4", "gptq")
EACH = [form if form in FEW else pytest.param(form, marks=pytest.mark.slow) for form in FORMS]
Stored = tuple[Mapping[str, np.ndarray], Mapping[str, Any]]
Read = Callable[[str, str], Stored]
APART = LOOPS.replace('("gate", "up", "down")', '("up", "down")').replace(
    '    llama["lm_head',
    '    llama["model.layers.{L}.mlp.gate_proj.weight"] = S("layers.{L}.mlp.gate_proj.weight", "out in")\n'
    '    llama["lm_head',
)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """The tensors and the config of a model in a format; "" is that of floats."""
    folder = tmp_path_factory.mktemp("renamed")

    @cache
    def read(model: str, form: str) -> Stored:
        place = write(model, FORMS[form], folder)[0] if form else plain(model, folder)
        opened = open_job(checkpoint=str(place)).checkpoint
        return {name: opened.read(info) for name, info in opened.headers.items()}, opened.config

    return read


def renamed(stored: Stored, old: str, new: str) -> Stored:
    return {name.replace(old, new): array for name, array in stored[0].items()}, stored[1]


def checked(stored: Stored) -> Report:
    return check(open_job(checkpoint=dict_checkpoint(*stored)))


def said(report: Report) -> list[tuple[str, str, str]]:
    """Codes, parameters and help, with modules in place of their plain weights."""
    return [(each.code, each.parameter, each.help.replace(".weight`", "`")) for each in report.findings]


def model_of(form: str, model: str = "llama") -> str:
    return f"{model} of words" if form in INT4 else model


RULE = "; correct the name in the rule"
LAYER = ", but the rule fits `model.layers.0.mlp.down_proj`: correct the file, or write where("
NAMES = [
    (".mlp.", ".ffn.", "{0..1}.ffn", RULE),
    ("gate_proj.", "w1.", "{0..1}.mlp.w1", RULE),
    ("layers.1.mlp.down_proj.", "layers.1.mlp.dwn_proj.", "1.mlp.dwn_proj", LAYER + '"L", {1}, S(…), S(…))'),
]


@pytest.mark.parametrize(("old", "new", "module", "correction"), NAMES)
@pytest.mark.parametrize("form", EACH)
def test_one_finding_names_the_module(read: Read, form: str, old: str, new: str, module: str, correction: str) -> None:
    floats, quantised = (read(model_of(form), each) for each in ("", form))
    report = checked(renamed(quantised, old, new))
    (finding,) = report.findings
    assert finding.code == "BU101"
    assert finding.help == f"did you mean `model.layers.{module}`? no rule reads it{correction}"
    assert said(report) == said(checked(renamed(floats, old, new)))
    codes = ("weight", "weight_packed", "qweight")
    assert {name.replace(old, new) for name in quantised[0] if old in name and name.endswith(codes)} <= {
        *finding.sources
    }


OTHERS = [
    ("_proj.", "_matrix."),
    (".experts.", ".specialists."),
    ("up_proj.", "w3."),
    (".mlp.", ".ffn."),
    (".self_attn.", ".attention."),
]


@pytest.mark.parametrize(("old", "new"), OTHERS)
@pytest.mark.parametrize("form", FEW)
@pytest.mark.parametrize("model", ["deepseek_v3", "phi3"])
def test_the_findings_of_the_same_floats(read: Read, model: str, form: str, old: str, new: str) -> None:
    """Experts in one parameter, matrices that several parameters read, and rules that read a part of a matrix."""
    floats, quantised = (read(model_of(form, model), each) for each in ("", form))
    assert said(checked(renamed(quantised, old, new))) == said(checked(renamed(floats, old, new)))


RULES = [
    (LLAMA, 'S("layers.{L}.mlp.{x}', 'S("layers.{L}.ffn.{x}', ".mlp.", ".ffn."),
    (APART, 'S("layers.{L}.mlp.gate_proj.', 'S("layers.{L}.mlp.w1.', "gate_proj.", "w1."),
]


@pytest.mark.parametrize("wrong", ["rule", "checkpoint"])
@pytest.mark.parametrize(("text", "rule", "other_rule", "old", "new"), RULES, ids=["module", "matrix"])
@pytest.mark.parametrize("form", EACH)
def test_the_rule_is_corrected(
    read: Read, tmp_path: Path, form: str, text: str, rule: str, other_rule: str, old: str, new: str, wrong: str
) -> None:
    """The repaired file is the expected one, and a second check has no finding."""
    stored, expected, before = read(model_of(form), form), text, text.replace(rule, other_rule)
    if wrong == "checkpoint":
        stored, expected, before = renamed(stored, old, new), before, expected
    checkpoint, file = dict_checkpoint(*stored), tmp_path / "mine.py"
    file.write_text(before, "utf-8")
    job = open_job(checkpoint=checkpoint, adapter=str(file))
    report = check(job)
    add_fixes(job, report)
    assert [finding.code for finding in report.findings] == ["BU101"]
    file.write_text(PyFile.read(file).edited(report.findings[0].fixes).text, "utf-8")
    assert file.read_text("utf-8") == expected
    assert not check(open_job(checkpoint=checkpoint, adapter=str(file))).findings


@pytest.mark.parametrize(
    ("stated", "other"), [("gptq", "awq"), ("awq", "gptq"), ("awq", "awq of rows"), ("gptq", "int8")]
)
def test_matrices_of_another_format_are_not_renamed_ones(read: Read, stated: str, other: str) -> None:
    """Modules of another name, which the rules do not read under their own one either."""
    (tensors, config), (others, _) = (
        renamed(read("llama of words", form), ".mlp.", ".ffn.") for form in (stated, other)
    )
    mixed = {
        **{n: a for n, a in tensors.items() if ".ffn." not in n},
        **{n: a for n, a in others.items() if ".ffn." in n},
    }
    report = checked((mixed, config))
    assert "BU137" in {finding.code for finding in report.findings}
    assert not any("did you mean" in finding.help for finding in report.findings)
    assert not any("listed as unquantised" in finding.help for finding in report.findings)
