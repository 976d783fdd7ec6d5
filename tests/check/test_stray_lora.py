"""Tensors of a LoRA in a checkpoint: the finding names the parameters of the graph that they change, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.convert import models


@pytest.mark.parametrize(
    ("module", "parameter"),
    [
        ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj.weight"),
        ("model.layers.0.self_attn.unknown", ""),
    ],
)
def test_the_parameter_of_a_stray_lora(module: str, parameter: str) -> None:
    """`parameter` of a report in JSON is a name of the graph; the message names the matrix in any case."""
    tensors, config = models.llama(layers=1)
    pair = {f"base_model.model.{module}.lora_{x}.weight": np.ones((2, 2), np.float32) for x in "AB"}
    findings = check(open_job(checkpoint=dict_checkpoint({**tensors, **pair}, config))).findings
    assert [(found.code, found.parameter, found.sources) for found in findings] == [("BU132", parameter, tuple(pair))]
    assert f"change `{module}.weight`" in findings[0].message
