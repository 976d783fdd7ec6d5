"""A quantised checkpoint that no rule reads is one finding, in every family and format; and so is its reverse."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.plan import make_plan
from bringup.adapters.planning.quantization import FORMATS, block_size, format_of, part_of
from bringup.compile.fix.search import add_fixes
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import Report
from bringup.graphs.registry import FAMILIES
from tests.check.drafts import read_draft
from tests.check.mutations.bases import BASES, base
from tests.check.mutations.deepseek_fp8 import fp8
from tests.check.mutations.mutation import Trial
from tests.check.quantised_forms import FORMS, Form, quantised
from tests.models import family as shown

PLAIN_WORDS = {"quant_method": "gptq", "bits": 4}


class Tiny(NamedTuple):
    model: str | None
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]

    def check(self, tensors: Mapping[str, np.ndarray], words: Mapping[str, Any] | None) -> Report:
        config = self.config | ({"quantization_config": dict(words)} if words else {})
        job = open_job(self.model, dict_checkpoint(tensors, config))
        report = check(job)
        add_fixes(job, report)
        return report


# In `make test`: families whose rules differ most.
OFTEN = ("bloom", "deepseek_v3", "gpt2", "gpt_oss", "llama", "mixtral", "qwen3_next")
EVERY = [pytest.param(family.name, marks=() if family.name in OFTEN else pytest.mark.slow) for family in FAMILIES]


@pytest.fixture(scope="module", params=EVERY)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    module = import_module(f"tests.models.test_{request.param}")
    folder = tmp_path_factory.mktemp(request.param) / "model"
    written = shown.written(module, next(iter(module.CASES)), folder, "float32")
    draft = read_draft(written.checkpoint, BASES["llama"])
    return Tiny(written.model, draft.config, draft.tensors)


def assert_one(report: Report, *said: str) -> None:
    assert [finding.code for finding in report.findings] == ["BU137"], report.findings
    (finding,) = report.findings
    assert all(text in finding.message for text in said), finding.message
    assert finding.help
    assert not finding.fixes


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_one_finding_with_and_without_words(tiny: Tiny, form: Form) -> None:
    tensors = quantised(tiny.tensors, form)
    assert_one(tiny.check(tensors, None), form.name, "config.json has no `quantization_config`")
    report = tiny.check(tensors, form.words)
    if form.read:
        assert not report.findings, report.findings
    else:
        assert_one(report, form.name, f"`quant_method` = '{form.words['quant_method']}'")


def test_words_over_plain_tensors(tiny: Tiny) -> None:
    assert_one(tiny.check(tiny.tensors, PLAIN_WORDS), "`quant_method` = 'gptq'", "`bits` = 4", "float32")


def test_another_mistake_is_another_finding(tiny: Tiny) -> None:
    """A norm that is missing next to AWQ matrices, which the config does not quantise."""
    tensors = quantised(tiny.tensors, FORMS["awq"])
    norm = next(name for name, array in tensors.items() if (array.ndim == 1 and "norm" in name) or "ln_" in name)
    if tiny.model:  # a draft drops the norms of its model
        norm = next(
            name for name in tensors if name.endswith(("enorm.weight", "norm_hidden.weight", "hidden_norm.weight"))
        )
    del tensors[norm]
    codes = [finding.code for finding in tiny.check(tensors, None).findings]
    assert codes == ["BU137", "BU101"]


@pytest.mark.parametrize("words", [name for name, form in FORMS.items() if form.read])
@pytest.mark.parametrize("form", FORMS)
def test_the_words_of_another_format(form: str, words: str) -> None:
    """One finding, which quotes them; but a block size that differs is one of its own (test_block_sizes.py)."""
    draft = base("llama")
    report = Tiny(None, draft.config, draft.tensors).check(quantised(draft.tensors, FORMS[form]), FORMS[words].words)
    if form == words:
        assert not report.findings
    elif (form, words) == ("fp8", "fp8-blocks"):
        assert [finding.code for finding in report.findings] == ["BU102"]
    else:
        assert_one(report, f"`quant_method` = '{FORMS[words].words['quant_method']}'")


def test_the_words_that_the_tensors_need() -> None:
    """They are proposed where the names have the family's prefix, too; a matrix may have two names' parts."""
    draft, words = base("llama"), FORMS["awq"].words
    whole = Tiny(None, draft.config, draft.tensors)
    (finding,) = whole.check(quantised(draft.tensors, FORMS["fp8-blocks"]), words).findings
    assert '"quant_method": "fp8", "weight_block_size": [' in finding.help
    tensors = quantised(draft.tensors, FORMS["awq"])
    tensors["layers.0.self_attn.v_proj.weight"] = np.zeros((127, 64), np.int8)
    tensors["layers.0.self_attn.v_proj.weight_scale"] = np.zeros((32, 1), np.float32)
    assert "BU137" in {each.code for each in whole.check(tensors, words).findings}


@pytest.mark.parametrize("rules", [None, "deepseek_v3"], ids=["llama", "deepseek_v3"])
def test_dequantised_weights_under_words_that_stayed(rules: str | None) -> None:
    draft = base(rules or "llama")
    whole = Tiny(None, draft.config, draft.tensors)
    report = whole.check(draft.tensors, FORMS["fp8-blocks"].words)
    assert_one(report, "`quant_method` = 'fp8'", "float32")
    assert "remove `quantization_config`" in report.findings[0].help


def test_one_matrix_that_was_not_converted() -> None:
    draft, form = base("deepseek_v3"), FORMS["fp8-blocks"]
    tensors, name = quantised(draft.tensors, form), "model.layers.1.self_attn.o_proj.weight"
    tensors[name] = draft.tensors[name]
    del tensors[f"{name}_scale_inv"]
    report = Tiny(None, draft.config, draft.tensors).check(tensors, form.words)
    assert_one(report, f"`{name}` as float32 without `weight_scale_inv`")
    assert "modules_to_not_convert" in report.findings[0].help
    assert report.findings[0].parameter == name


def test_the_words_that_are_lacking_are_stated() -> None:
    draft = base("deepseek_v3")
    report = Tiny(None, draft.config, draft.tensors).check(quantised(draft.tensors, FORMS["fp8-blocks"]), None)
    assert '"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}' in report.findings[0].help


def test_a_module_that_the_config_keeps_and_the_file_quantises() -> None:
    draft, form = base("deepseek_v3"), FORMS["fp8-blocks"]
    words = {**form.words, "modules_to_not_convert": ["model.layers.0.mlp"]}
    report = Tiny(None, draft.config, draft.tensors).check(quantised(draft.tensors, form), words)
    assert_one(report, "`model.layers.0.mlp.down_proj.weight`", "3 in all")
    assert "correct the list" in report.findings[0].help


def test_no_name_of_a_quantiser_is_proposed() -> None:
    """Matrices under the name of a quantiser's part: no rule is respelt to read them."""
    draft = base("llama")
    tensors = dict(draft.tensors)
    name = "model.layers.{}.mlp.down_proj.weight"
    for layer in range(3):
        array = tensors.pop(name.format(layer))
        tensors[name.format(layer) + "_packed"] = array
    assert_one(Tiny(None, draft.config, draft.tensors).check(tensors, None), "compressed-tensors")


SHAPES = [
    ([((96, 64), (6, 4))], (16, 16)),
    ([((96, 64), (3, 1)), ((40, 200), (2, 4))], (32, 64)),
    ([((100, 60), (1, 60))], (128, 1)),
    ([((30, 30), (3, 3))], (10, 10)),
    ([((96, 64), (6, 4)), ((96, 64), (3, 2))], None),
    ([((96, 64), (200, 4))], None),
    ([((96, 64), ())], None),
    ([((96, 64), (0, 4))], None),
    ([((96, 64), (6, 4)), ((96,), (6,))], None),
]


@pytest.mark.parametrize(("pairs", "block"), SHAPES, ids=range(len(SHAPES)))
def test_block_sizes(pairs: list[tuple[tuple[int, ...], tuple[int, ...]]], block: tuple[int, ...] | None) -> None:
    assert block_size(pairs) == block


def test_every_block_of_every_shape() -> None:
    """By counting: a block that is found gives all counts, and one is found whenever some block does."""
    for size in range(1, 40):
        for wanted in range(1, size + 1):
            count = len(range(0, size, wanted))
            (found,) = block_size([((size,), (count,))]) or (0,)
            assert len(range(0, size, found)) == count


def test_every_format_is_recognised_by_its_marks() -> None:
    for row in FORMATS:
        for mark in row.marks:
            assert format_of(mark, row.methods[0]) is row
    assert format_of({"qweight", "qzeros", "scales"}, "gptq") is not format_of({"qweight", "qzeros", "scales"}, "awq")
    assert format_of({"scales"}) is None
    assert part_of("model.layers.0.mlp.gate_proj.weight") is None
    assert part_of("logit_scale") is None
    assert part_of("model.layers.0.input_layernorm.weight") is None


def test_a_quantised_matrix_whose_rule_is_missing() -> None:
    """What is missing is the rule: other rules of the adapter read the format."""
    trial = Trial(base("deepseek_v3"))
    fp8(trial)
    job = open_job(None, dict_checkpoint(trial.tensors, trial.config))
    rules = copy(job.adapter)
    rules.rules = [rule for rule in rules.rules if "o_proj" not in rule.pattern]
    plan = make_plan(job.graph.signature(), rules, job.checkpoint.headers)
    (found,) = check(replace(job, adapter=rules, plan=plan)).findings
    assert (found.code, found.parameter) == ("BU103", "model.layers.{0..2}.self_attn.o_proj.weight")


def test_names_of_a_wrapper_before_matrices_that_rules_read() -> None:
    trial = Trial(base("deepseek_v3"))
    fp8(trial)
    assert check(open_job(None, dict_checkpoint(trial.tensors, trial.config))).ok
    wrapped = {f"module.{name}": array for name, array in trial.tensors.items()}
    (finding,) = check(open_job(None, dict_checkpoint(wrapped, trial.config))).findings
    assert (finding.code, "`module.`" in finding.message) == ("BU101", True)
