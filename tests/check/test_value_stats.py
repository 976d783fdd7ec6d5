"""Values that no trained model has are named by the graph's parameters, also where a layout joins these."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.adapters import fused, lay_out
from bringup.adapters.planning.plan import Plan
from bringup.compile.check.value_stats import Soundness
from bringup.compile.check.values import read_parameter
from tests.convert import models

ZERO, NAN = "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight"
NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize("joined", [False, True])
def test_a_part_of_a_joined_matrix_is_named(joined: bool) -> None:
    tensors, config = models.llama()
    tensors[ZERO] = np.zeros_like(tensors[ZERO])
    tensors[NAN][2, 3] = np.nan
    tensors[NORM] = np.zeros_like(tensors[NORM])  # a vector of zeros is no finding
    job = models.job(tensors, config)
    plan: Plan = lay_out(job.plan, fused()) if joined else job.plan
    assert ("model.layers.0.mlp.gate_up_proj.weight" in plan.entries) == joined
    sound = Soundness()
    for entry in plan.entries.values():
        sound.look(entry, read_parameter(job, entry))
    found = {finding.code: finding for finding in sound.findings(plan)}
    assert {code: finding.parameter for code, finding in found.items()} == {"BU133": NAN, "BU134": ZERO}
    assert found["BU133"].sources == (NAN,)
