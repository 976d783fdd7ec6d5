"""What a rank holds of an adapter, against slicing ΔW itself: each rank's b · a is its part of the whole model's ΔW.

A column-parallel parameter has its part of B and all of A, a row-parallel one the reverse.
"""

from __future__ import annotations

import numpy as np
import pytest

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.lora.merge import delta
from bringup.adapters.planning.expected_headers import as_declared
from bringup.adapters.planning.plan import make_plan
from bringup.compile.job import open_job
from bringup.compile.lora.opening import load_lora
from tests.lora.written import Case, write

EXPERTS = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
TP2, TP4, PP2 = Parallel(tp=2), Parallel(tp=4), Parallel(pp=2)
EP2 = Parallel(tp=2, ep=2, pp=2)
LLAMA = ["q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"]
CASES = {
    "llama": (Case("llama", {"r": 4, "target_modules": LLAMA}), (TP2, TP4, PP2, Parallel(tp=2, vocab="head"))),
    "gpt2": (
        Case("gpt2", {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc", "wte"], "fan_in_fan_out": True}),
        (TP2, TP4, PP2),
    ),
    "mixtral": (Case("mixtral", {"r": 4, "target_modules": ["v_proj"], **EXPERTS}), (TP2, PP2, EP2)),
    "deepseek_v3": (
        Case("deepseek_v3", {"r": 4, "target_modules": ["q_b_proj", "kv_b_proj", "o_proj"], **EXPERTS}),
        (TP2, TP4, PP2, EP2),
    ),
    "phi3": (Case("phi3", {"r": 4, "target_modules": "all-linear"}), (TP2, PP2)),
    "gpt_neox": (Case("gpt_neox", {"r": 4, "target_modules": "all-linear"}), (TP2, TP4, PP2)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rank_holds_its_part_of_the_change(name, tmp_path):
    case, groups = CASES[name]
    written = write(case, tmp_path)
    job = open_job(checkpoint=str(written.base))
    loaded = load_lora(job, written.lora)
    assert loaded.findings == []
    lora, checkpoint = loaded.lora, loaded.files.checkpoint
    stages = Stages.of(job.graph)
    signature = job.graph.signature()
    whole = {site: delta(factors, lora.arrays(checkpoint)) for site, factors in lora.sites.items()}
    changes = {name: whole.get(name, np.zeros([a.size for a in d.axes], np.float32)) for name, d in signature.items()}
    given = dict_checkpoint(changes, {})
    of_changes = make_plan(signature, as_declared(signature), given.headers)
    for parallel in groups:
        for number in range(parallel.size):
            wanted = materialise(rank_plan(of_changes, parallel, number, stages), given)
            part = rank_plan(lora.plan, parallel, number, stages)
            arrays = materialise(part, checkpoint)
            held = [site for site in lora.sites if site in wanted]
            assert held
            assert {factor.a for site in held for factor in lora.sites[site]} <= arrays.keys()
            for site in held:
                np.testing.assert_allclose(delta(lora.sites[site], arrays), wanted[site], rtol=1e-5, atol=1e-6)


def test_columns_divide_b_and_rows_divide_a(tmp_path):
    """The two cases of TensorRT-LLM's docs/source/advanced/lora.md."""
    written = write(Case("llama", {"r": 4, "target_modules": ["up_proj", "down_proj"]}), tmp_path)
    job = open_job(checkpoint=str(written.base))
    loaded = load_lora(job, written.lora)
    arrays = loaded.lora.arrays(loaded.files.checkpoint)
    up, down = ("model.layers.0.mlp.up_proj.weight.lora_", "model.layers.0.mlp.down_proj.weight.lora_")
    stages = Stages.of(job.graph)
    for number in range(2):
        part = materialise(rank_plan(loaded.lora.plan, Parallel(tp=2), number, stages), loaded.files.checkpoint)
        f = slice(number * 24, number * 24 + 24)
        np.testing.assert_array_equal(part[up + "A"], arrays[up + "A"])
        np.testing.assert_array_equal(part[up + "B"], arrays[up + "B"][f])
        np.testing.assert_array_equal(part[down + "A"], arrays[down + "A"][:, f])
        np.testing.assert_array_equal(part[down + "B"], arrays[down + "B"])
