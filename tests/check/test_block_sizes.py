"""Scales of another block size are one finding that names the config's word and the block that the file has."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.check.mutations.bases import base
from tests.check.quantised_forms import FORMS, GROUP, quantised

FORM = FORMS["fp8-blocks"]
TRIALS = [(8, 8), (32, 32), (16, 8), (8, 16), (4, 4), (2, 8), (1, 16), (64, 64), (12, 12), (5, 7), (24, 16)]


@pytest.mark.parametrize("block", TRIALS, ids=str)
def test_the_config_has_another_block(block: tuple[int, int]) -> None:
    draft = base("deepseek_v3")
    words = {**FORM.words, "weight_block_size": list(block)}
    tensors = quantised(draft.tensors, FORM)
    report = check(open_job(None, dict_checkpoint(tensors, draft.config | {"quantization_config": words})))
    assert [finding.code for finding in report.findings] == ["BU102"], report.findings
    (finding,) = report.findings
    assert f"`weight_block_size` is {list(block)}" in finding.message
    assert finding.actual == str([GROUP, GROUP])


@pytest.mark.parametrize(
    "name", ["layers.1.self_attn.o_proj", "layers.2.mlp.experts.3.up_proj", "layers.0.mlp.up_proj"]
)
def test_one_matrix_has_another_block(name: str) -> None:
    draft = base("deepseek_v3")
    tensors = quantised(draft.tensors, FORM)
    scales = f"model.{name}.weight_scale_inv"
    tensors[scales] = np.ones([-(-size // 8) for size in tensors[f"model.{name}.weight"].shape], np.float32)
    report = check(open_job(None, dict_checkpoint(tensors, draft.config | {"quantization_config": FORM.words})))
    (finding,) = report.findings
    assert (finding.code, finding.sources, finding.actual) == ("BU102", (scales,), "[8, 8]")


@pytest.mark.parametrize("shape", [(), (1,), (200, 3)], ids=str)
def test_scales_that_no_block_gives(shape: tuple[int, ...]) -> None:
    draft = base("deepseek_v3")
    tensors = quantised(draft.tensors, FORM)
    for name in [name for name in tensors if name.endswith("weight_scale_inv")]:
        tensors[name] = np.ones(shape, np.float32)
    report = check(open_job(None, dict_checkpoint(tensors, draft.config | {"quantization_config": FORM.words})))
    (finding,) = report.findings
    assert finding.code == "BU102"
    assert "no block size" in finding.message
    assert "`weight_block_size` is [16, 16]" in finding.message
