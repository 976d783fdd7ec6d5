"""Shared experts behind the routed ones: the same numbers, one choice more for each token."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.adapters.apply.fuse import lay_out, shared_as_experts
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.reverse import reverse
from bringup.adapters.apply.shard import slice_plan
from bringup.compile.job import Job, open_job
from tests.models import test_deepseek_v2, test_glm4_moe

EXPERTS, SHARED = "model.layers.{}.mlp.experts.{}_proj", "model.layers.{}.mlp.shared_experts.{}_proj.weight"
MODELS = {  # two shared experts, and one
    "deepseek": (test_deepseek_v2.CASES["groups-yarn"], 2),
    "glm": (test_glm4_moe.CASES["more-experts-than-tokens"], 1),
}


@pytest.fixture(params=MODELS)
def case(request) -> tuple[Job, int, int]:
    config, shared = MODELS[request.param]
    assert config.n_shared_experts == shared
    raw = config.to_dict() | {"architectures": [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]}
    return open_job(None, "dummy", config=raw), config.moe_intermediate_size, shared


def gated(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    inner = gate @ x
    return down @ (inner / (1 + np.exp(-inner)) * (up @ x))


def test_what_is_behind_gives_what_stood_apart(case):
    job, width, shared = case
    plan = lay_out(job.plan, shared_as_experts(width))
    apart, behind = (
        {name: array.astype("float64") for name, array in materialise(each, job.checkpoint).items()}
        for each in (job.plan, plan)
    )
    assert not any("shared_experts" in name for name in behind)
    layers = [int(name.split(".")[2]) for name in apart if name.endswith("experts.down_proj")]
    assert layers
    for layer in layers:
        routed = [apart[EXPERTS.format(layer, x)] for x in ("gate", "up", "down")]
        all_of_them = [behind[EXPERTS.format(layer, x)] for x in ("gate", "up", "down")]
        count = len(routed[0])
        assert [len(matrices) for matrices in all_of_them] == [count + shared] * 3
        assert all(np.array_equal(a[:count], b) for a, b in zip(all_of_them, routed, strict=True))
        x = np.random.default_rng(layer).normal(size=routed[0].shape[2])
        wanted = gated(x, *(apart[SHARED.format(layer, x)] for x in ("gate", "up", "down")))
        found = sum(gated(x, *(matrices[e] for matrices in all_of_them)) for e in range(count, count + shared))
        assert np.abs(wanted).max() > 0
        assert np.allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


def test_it_goes_back_to_the_checkpoint(case):
    job, width, _ = case
    plan = lay_out(job.plan, shared_as_experts(width))
    back = reverse(plan, materialise(plan, job.checkpoint))
    used = {name: info for name, info in job.checkpoint.headers.items() if name not in job.plan.dropped}
    assert back.keys() == used.keys()
    assert all(np.array_equal(back[name], job.checkpoint.read(info)) for name, info in used.items())


def test_a_rank_has_its_part_of_every_expert(case):
    job, width, _ = case
    plan = lay_out(job.plan, shared_as_experts(width))
    parts = [materialise(slice_plan(plan, ("f",), rank, 2), job.checkpoint) for rank in (0, 1)]
    whole = materialise(plan, job.checkpoint)
    experts = [name for name in whole if ".experts." in name]
    assert experts
    for name in experts:
        axis = 2 if "down" in name else 1
        assert np.array_equal(np.concatenate([part[name] for part in parts], axis), whole[name]), name
