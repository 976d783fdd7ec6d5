"""The fused layout of a Llama plan: equal to concatenation, sliceable, invertible."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.adapters.apply.fuse import fused, lay_out
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.reverse import reverse
from bringup.adapters.apply.shard import slice_plan
from bringup.adapters.llama import adapter
from bringup.adapters.planning.expected_headers import published
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.adapters.sources.dummy import dummy_checkpoint
from bringup.diagnostics import BringupError
from bringup.graphs.llama import Llama, LlamaConfig

RAW = {
    "vocab_size": 11,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": True,
    "tie_word_embeddings": False,
}


@pytest.fixture
def plan_and_checkpoint():
    config = LlamaConfig.from_hf(RAW)
    signature, table = Llama(config).signature(), adapter(config)
    checkpoint = dummy_checkpoint(published(signature, table), RAW)
    return make_plan(signature, table, checkpoint.headers), checkpoint


def joined(arrays: dict[str, np.ndarray], layer: int) -> dict[str, np.ndarray]:
    at = f"model.layers.{layer}."
    return {
        f"{at}self_attn.qkv_proj.weight": np.concatenate([arrays[f"{at}self_attn.{x}_proj.weight"] for x in "qkv"]),
        f"{at}self_attn.qkv_proj.bias": np.concatenate([arrays[f"{at}self_attn.{x}_proj.bias"] for x in "qkv"]),
        f"{at}mlp.gate_up_proj.weight": np.concatenate([arrays[f"{at}mlp.{x}_proj.weight"] for x in ("gate", "up")]),
    }


def test_fused_is_the_concatenation(plan_and_checkpoint):
    plan, checkpoint = plan_and_checkpoint
    logical = materialise(plan, checkpoint)
    physical = materialise(lay_out(plan, fused()), checkpoint)
    wanted = joined(logical, 0) | joined(logical, 1)
    assert all(np.array_equal(physical[name], array) for name, array in wanted.items())
    assert not any(name.endswith((".q_proj.weight", ".up_proj.weight")) for name in physical)
    assert np.array_equal(physical["model.norm.weight"], logical["model.norm.weight"])


@pytest.mark.parametrize("rank", [0, 1])
def test_slice_of_fused_is_fused_of_slices(plan_and_checkpoint, rank):
    plan, checkpoint = plan_and_checkpoint
    axes = ("h", "g", "f", "vocab")

    def arrays(plan: Plan) -> dict[str, np.ndarray]:
        return materialise(plan, checkpoint)

    with pytest.raises(BringupError, match=r"BU130.*vocab"):  # 11 rows do not divide
        slice_plan(plan, axes, rank, 2)
    one = arrays(slice_plan(lay_out(plan, fused()), axes[:3], rank, 2))
    other = arrays(lay_out(slice_plan(plan, axes[:3], rank, 2), fused()))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    parts = arrays(slice_plan(plan, axes[:3], rank, 2))
    assert np.array_equal(
        one["model.layers.1.self_attn.qkv_proj.weight"],
        np.concatenate([parts[f"model.layers.1.self_attn.{x}_proj.weight"] for x in "qkv"]),
    )


def test_reverse_of_fused_is_the_checkpoint(plan_and_checkpoint):
    plan, checkpoint = plan_and_checkpoint
    physical = lay_out(plan, fused())
    back = reverse(physical, materialise(physical, checkpoint))
    assert back.keys() == checkpoint.headers.keys()
    assert all(np.array_equal(back[n], checkpoint.read(info)) for n, info in checkpoint.headers.items())
