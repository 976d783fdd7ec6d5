"""A rule that is missing is one finding: what it leaves unread, wholly or in part, is no mistake of its own."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.plan import make_plan
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import Diagnostic
from bringup.graphs.registry import FAMILIES
from tests.check.drafts import read_draft
from tests.check.mutations.bases import BASES, base
from tests.check.mutations.deepseek_fp8 import fp8
from tests.check.mutations.gpt_oss import mxfp4
from tests.check.mutations.mutation import Trial
from tests.check.quantised_forms import FORMS, quantised
from tests.models import family as shown

# Fused tensors, stacked experts, other names than the parameters', and layers with other numbers.
FIRST = ("phi3", "gpt_oss", "qwen", "deepseek_mtp")


def without(job: Job, *patterns: str) -> list[Diagnostic]:
    """What `check` finds where the rules of these patterns are missing."""
    rules = copy(job.adapter)
    rules.rules = [rule for rule in rules.rules if not any(pattern in rule.pattern for pattern in patterns)]
    assert len(rules.rules) < len(job.adapter.rules)
    plan = make_plan(job.graph.signature(), rules, job.checkpoint.headers)
    return check(replace(job, adapter=rules, plan=plan)).findings if plan.problems else []


def job_of(trial: Trial) -> Job:
    return open_job(None, dict_checkpoint(trial.tensors, trial.config))


@pytest.mark.parametrize(
    "family",
    [pytest.param(f.name, marks=() if f.name in FIRST else pytest.mark.slow) for f in FAMILIES],
)
def test_each_rule_of_each_family(family: str, tmp_path: Path) -> None:
    module = import_module(f"tests.models.test_{family}")
    written = shown.written(module, next(iter(module.CASES)), tmp_path / "model", "float32")
    draft = read_draft(written.checkpoint, BASES["llama"])
    job = open_job(written.model, dict_checkpoint(draft.tensors, draft.config))
    seen: list[str] = []
    for rule in job.adapter.rules:
        findings = without(job, rule.pattern)
        assert {finding.code for finding in findings} <= {"BU103"}, (rule.pattern, findings)
        assert len(findings) <= 1, (rule.pattern, findings)
        for finding in findings:  # of a tied pair, one has no tensor
            tied = finding.parameter in ("lm_head.weight", "model.embed_tokens.weight")
            assert finding.sources or (tied and finding.help == "add a rule for it to the adapter")
            seen.append(rule.pattern)
    assert len(seen) > 3


@pytest.mark.parametrize(
    ("patterns", "tensors"),
    [
        (["experts.down_proj"], ["down_proj_bias", "down_proj_blocks", "down_proj_scales"]),
        (["experts.gate_proj"], ["gate_up_proj_bias", "gate_up_proj_blocks", "gate_up_proj_scales"]),
        (["_proj"], ["gate_up_proj_blocks", "q_proj.weight"]),
    ],
)
def test_experts_in_mxfp4(patterns: list[str], tensors: list[str]) -> None:
    trial = Trial(base("gpt_oss"))
    mxfp4(trial)
    (finding,) = without(job_of(trial), *patterns)
    assert finding.code == "BU103"
    assert "; a rule reads what is stored as `blocks`, `scales` by its plain name" in finding.help
    assert all(any(name.endswith(tensor) for name in finding.sources) for tensor in tensors)


def test_experts_in_fp8() -> None:
    trial = Trial(base("deepseek_v3"))
    fp8(trial)
    (finding,) = without(job_of(trial), "mlp.experts.")
    assert finding.code == "BU103"
    assert len(finding.sources) == 2 * 8 * 3 * 2  # layers, experts, matrices, payload and scales


def test_a_format_that_no_rule_reads_is_a_finding_of_its_own() -> None:
    """Experts without a rule, in AWQ that no word states: a rule would not help with attention's matrices."""
    trial = Trial(base("deepseek_v3"))
    trial.draft.tensors = quantised(trial.tensors, FORMS["awq"])
    findings = without(job_of(trial), "experts.")
    assert [finding.code for finding in findings] == ["BU137", "BU103"]
    assert not set(findings[0].sources) & set(findings[1].sources)


def test_what_is_too_much_stays_a_finding_of_its_own() -> None:
    """A tensor of another size in the same module as the one whose rule is missing."""
    trial = Trial(base("llama"))
    trial.tensors["model.layers.0.self_attn.extra.weight"] = np.ones((3, 5), np.float32)
    findings = without(job_of(trial), "q|k|v|o")
    assert [finding.code for finding in findings] == ["BU105", "BU103"]
    assert findings[0].sources == ("model.layers.0.self_attn.extra.weight",)


@pytest.mark.parametrize("name", ["weight", "bias", "model.weight", "model.bias"])
def test_a_tensor_of_no_module(name: str) -> None:
    trial = Trial(base("llama"))
    trial.tensors[name] = np.ones((3, 5), np.float32)
    findings = without(job_of(trial), "q|k|v|o")
    assert [(finding.code, finding.sources) for finding in findings[:1]] == [("BU105", (name,))]
    assert findings[1].code == "BU103"
