"""Each fault alone is one diagnostic that names the parameter and the rule; several at once are one each."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from click.testing import CliRunner

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.cli.main import cli
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError, Diagnostic, Report, Severity
from tests.check.conftest import DRAFTS, small
from tests.check.drafts import FUSED, GPT2, LLAMA, MIXTRAL, Draft, Family, write_draft
from tests.check.faults import (
    FAULTS,
    MISTAKE,
    Answer,
    Fault,
    deeper,
    extra,
    headless,
    hole,
    integer,
    missing,
    padded,
    renamed,
    square,
    transposed,
)

FAMILIES = {"gpt2": GPT2, "gpt2-bare": GPT2, "llama": LLAMA, "mixtral": MIXTRAL, "fused": FUSED}
ALONE = [
    pytest.param(key, fault, id=f"{key}-{fault.key}")
    for key, family in FAMILIES.items()
    for fault in FAULTS
    if family in fault.families
]
ON_DISK = [
    pytest.param(family, fault, id=f"{family.name}-{fault.key}")
    for family in (GPT2, LLAMA, MIXTRAL, FUSED)
    for fault in FAULTS
    if family in fault.families
]
MANY = (missing, renamed, transposed, integer, padded)


def checked(draft: Draft, adapter: Path | None = None) -> Report:
    """A check of headers alone."""
    try:
        checkpoint = dict_checkpoint(draft.tensors, draft.config)
        return check(open_job(draft.family.model, checkpoint, adapter=str(adapter) if adapter else None))
    except BringupError as error:
        return Report(findings=list(error.findings))


def assert_answers(finding: Diagnostic, answer: Answer) -> None:
    assert (finding.code, finding.parameter) == (answer.code, answer.parameter)
    assert finding.severity is Severity.ERROR
    text = f"{finding.message}\n{finding.help}"
    assert [words for words in answer.mentions if words not in text] == [], text
    if answer.rule:
        assert finding.where is not None
        assert Path(finding.where.file).resolve() == answer.rule.resolve()
        if answer.code != "BU122":
            assert finding.declared is not None


@pytest.mark.parametrize("draft", DRAFTS, indirect=True)
def test_a_clean_checkpoint_gives_nothing(draft: Draft) -> None:
    report = checked(draft)
    assert report.findings == []
    assert report.counts["consumed"] == report.counts["tensors"] == len(draft.tensors)


@pytest.mark.parametrize(("draft", "fault"), ALONE, indirect=["draft"])
def test_one_fault_is_one_diagnostic(draft: Draft, fault: Fault) -> None:
    answer = fault.spoil(draft)
    report = checked(draft, fault.adapter(draft.family))
    assert [finding.code for finding in report.findings] == [answer.code], report.findings
    assert_answers(report.findings[0], answer)


@pytest.mark.parametrize("draft", DRAFTS, indirect=True)
def test_many_faults_are_one_diagnostic_each(draft: Draft) -> None:
    answers = [spoil(draft) for spoil in MANY]
    assert_each(checked(draft), answers)


@pytest.mark.parametrize("draft", DRAFTS, indirect=True)
def test_any_two_faults_are_two_diagnostics(draft: Draft) -> None:
    """Except where one hides the other: an unread config stops the check."""
    possible = [f for f in FAULTS if draft.family in f.families and f.key not in ("rope", "square")]
    for pair in combinations(possible, 2):
        both = draft.copy()
        answers = [fault.spoil(both) for fault in pair]
        if {fault.key for fault in pair} == {"padded", "headless"}:  # then there is one padded table only
            answers = [_without_head(answer) for answer in answers]
        assert_each(checked(both), answers)


def _without_head(answer: Answer) -> Answer:
    return replace(answer, parameter=answer.parameter.removesuffix(", lm_head.weight"))


@pytest.mark.parametrize("draft", DRAFTS, indirect=True)
def test_everything_at_once(draft: Draft) -> None:
    """All faults that a checkpoint of the family can have, in one run, by an adapter that forgets."""
    family = draft.family
    spoils = [missing, extra, renamed, transposed, integer, padded, headless]
    spoils += [hole] if family in (MIXTRAL, FUSED) else []
    answers = [spoil(draft) for spoil in spoils]
    answers = [_without_head(answer) if answer.code == "BU102" else answer for answer in answers]
    answers.append(deeper(draft))
    if family.forgetful:
        answers = [replace(a, rule=family.forgetful) if _has_own_rule(family, a) else a for a in answers]
        answers.append(square(draft))
    assert_each(checked(draft, family.forgetful), answers)


def _has_own_rule(family: Family, answer: Answer) -> bool:
    """Whether the forgetful adapter makes the parameter by a rule of its own: Llama's keeps all but attention's."""
    return answer.rule is not None and family is GPT2


def assert_each(report: Report, answers: list[Answer]) -> None:
    found = sorted(report.findings, key=_order)
    wanted = sorted(answers, key=_order)
    assert [_order(finding) for finding in found] == [_order(answer) for answer in wanted]
    for finding, answer in zip(found, wanted, strict=True):
        assert_answers(finding, answer)


def _order(finding: Diagnostic | Answer) -> tuple[str, str]:
    return finding.code, finding.parameter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def run(family: Family, folder: Path, fault: Fault, *more: str) -> tuple[int, str]:
    """`bringup check` as a user types it."""
    adapter = fault.adapter(family)
    words = ["check", *([family.model] if family.model else []), "--checkpoint", str(folder), *more]
    result = CliRunner().invoke(cli, words + (["--adapter", str(adapter)] if adapter else []))
    return result.exit_code, result.stdout


@pytest.mark.parametrize(("family", "fault"), ON_DISK)
def test_the_command_line_says_so_and_exits_with_1(family: Family, fault: Fault, folder: Path) -> None:
    """Of checkpoints that transformers wrote, whole and in shards."""
    draft = small(family).copy()
    answer = fault.spoil(draft)
    for shards in (1, 3):
        code, text = run(family, write_draft(draft, folder / str(shards), shards), fault, "--format", "json")
        assert code == 1, text
        findings = json.loads(text)["findings"]
        assert [f["code"] for f in findings] == [answer.code]
        assert findings[0]["parameter"] == answer.parameter
        rule = findings[0]["rule"]
        assert (Path(rule["file"]).resolve() if rule else None) == (answer.rule and answer.rule.resolve())
    code, text = run(family, folder / "3", fault)
    assert code == 1
    assert f"error[{answer.code}]" in text
    assert "1 error; `bringup explain" in text
    for words in (answer.mentions[0], answer.rule.name if answer.rule else ""):
        assert words in text
    for finding in findings:
        if finding.get("file"):
            assert ("config.json" if finding["line"] else "model-0000") in finding["file"]


@pytest.mark.parametrize("family", [GPT2, LLAMA, MIXTRAL, FUSED], ids=lambda family: family.name)
def test_the_command_line_passes_a_clean_checkpoint(family: Family, folder: Path) -> None:
    for shards in (1, 3):
        code, text = run(family, write_draft(small(family), folder / str(shards), shards), FAULTS[0])
        assert code == 0
        assert text.endswith("fits\n")


@pytest.mark.parametrize("family", [GPT2, LLAMA], ids=lambda family: family.name)
def test_the_line_of_the_rule_at_fault(family: Family) -> None:
    draft = small(family).copy()
    square(draft)
    assert family.forgetful is not None
    (finding,) = checked(draft, family.forgetful).findings
    assert finding.where is not None
    lines = family.forgetful.read_text("utf-8").splitlines()
    assert [finding.where.line] == [n for n, line in enumerate(lines, 1) if MISTAKE in line]


def test_an_explicit_movement_says_that_a_square_is_intended(tmp_path: Path) -> None:
    assert GPT2.forgetful is not None
    text = GPT2.forgetful.read_text("utf-8")
    rule = 'S("h.{L}.attn.c_proj.weight")'
    assert rule in text
    answers = {
        'S("h.{L}.attn.c_proj.weight", "out in")': ["BU107"],
        'S("h.{L}.attn.c_proj.weight", "in out")': [],
        'S("h.{L}.attn.c_proj.weight", "out in").mv("out in -> in out")': [],
    }
    for k, (instead, codes) in enumerate(answers.items()):
        adapter = tmp_path / f"adapter{k}.py"
        adapter.write_text(text.replace(rule, instead), "utf-8")
        assert [finding.code for finding in checked(small(GPT2), adapter).findings] == codes


def test_a_square_of_unknown_axes_is_an_error(tmp_path: Path) -> None:
    assert GPT2.forgetful is not None
    adapter = tmp_path / "adapter.py"
    adapter.write_text(GPT2.forgetful.read_text("utf-8").replace('"out in", "vocab m"', '"vocab m"'), "utf-8")
    (finding,) = checked(small(GPT2), adapter).findings
    assert finding.code == "BU106"
    assert finding.parameter == "transformer.h.{0..2}.attn.c_proj.weight"
    assert "does not show which axis is which" in finding.message


@pytest.mark.parametrize("family", [GPT2, LLAMA], ids=lambda family: family.name)
def test_a_head_that_is_there_though_tied_and_padded(family: Family) -> None:
    """Both tables are then compared; neither shape may raise."""
    draft = small(family).copy()
    draft.config["tie_word_embeddings"] = True
    draft.tensors["lm_head.weight"] = draft.tensors[draft.name(family.embedding)]
    assert checked(draft).findings == []
    answer = padded(draft)
    (finding,) = checked(draft).findings
    assert_answers(finding, answer)
