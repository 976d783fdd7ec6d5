"""Which modules of a program have slots: those that functions of its layers read, whatever the family."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import DeepseekV3Config, MixtralConfig, Qwen3Config

from bringup.compile.job import open_job
from bringup.compile.lora.limits import with_slots
from bringup.compile.program.assemble import interface_of, tensors_of, trace_entry
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.program import Interface, StateSpec
from bringup.compile.program.trace import tracer_of
from bringup.compile.runtime.lora.loras import Loras
from bringup.compile.runtime.lora.slots import Slots
from bringup.compile.runtime.lora.weights import LoraFactors, LoraWeights
from bringup.diagnostics import BringupError

COMMON = {"vocab_size": 97, "max_position_embeddings": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
ATTENTION = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}
MLP = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
LATENT = {
    "self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.o_proj",
    "self_attn.k_b_proj", "self_attn.v_b_proj",
}  # fmt: skip
CASES = {
    "qwen3": (
        Qwen3Config(**COMMON, hidden_size=16, intermediate_size=24, num_key_value_heads=1, head_dim=8),
        ATTENTION | MLP,
    ),
    "mixtral": (
        MixtralConfig(**COMMON, hidden_size=16, intermediate_size=24, num_key_value_heads=1, num_local_experts=3),
        ATTENTION | {"mlp.gate", "mlp.experts"},
    ),
    "deepseek_v3": (
        DeepseekV3Config(
            **COMMON, hidden_size=16, intermediate_size=24, num_key_value_heads=2, q_lora_rank=5, kv_lora_rank=7,
            qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6, first_k_dense_replace=1, n_routed_experts=4,
            num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=6, n_group=1, topk_group=1,
        ),
        LATENT | MLP | {"mlp.gate", "mlp.experts"} | {f"mlp.shared_experts.{name.partition('.')[2]}" for name in MLP},
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", CASES)
def test_slots_are_those_of_modules_that_run(family):
    """By default all of the layers: neither the embedding nor the head."""
    config, wanted = CASES[family]
    job = with_slots(open_job(family, "dummy", config=config.to_dict(), dtype="float32"), rank=3, count=2)
    layout = layout_of(job.graph, 64, (16,))
    traced = [trace_entry(layout, point, tracer_of(job.graph, layout)) for point in layout.entries if point.decode]
    slots = Slots(interface_of(layout, traced, tensors_of(job.graph, layout)))
    found = {".".join(name.split(".")[3:-1]) for name in slots.shapes()}
    assert found == wanted
    assert (slots.count, slots.rank) == (2, 3)
    assert all(entry.chooses_loras for entry, _ in traced)


def interface(states: tuple[StateSpec, ...]) -> Interface:
    return Interface(
        functions=(), entries=(), weights=(), states=states, max_blocks=1, all_logits=False, block_size=64,
        num_blocks=2, num_rows=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    "settings", [{"fraction": "half"}, {"fraction": 0}, {"host_bytes": "1 GB"}, {"host_bytes": -1}]
)
def test_sizes_of_caches_that_are_no_numbers_are_rejected(settings):
    with pytest.raises(BringupError, match=r"BU024.*lora_(fraction|bytes)"):
        Loras(interface(()), None, **settings)


@pytest.mark.parametrize(("dtype", "value"), [("float16", 70_000.0), ("bfloat16", 3.4e38), ("float32", np.inf)])
def test_values_that_overflow_the_dtype_of_slots_are_rejected(dtype, value):
    specs = [(f"q.weight_lora.{part}", shape) for part, shape in (("a", (1, 2, 4)), ("b", (1, 2, 3)))]
    states = tuple(StateSpec(name=name, shape=shape, dtype=dtype, kind="lora") for name, shape in specs)
    slots = Slots(interface(states))

    def lora(largest: float) -> LoraWeights:
        return LoraWeights({"q.weight": LoraFactors(np.ones((1, 4)), np.array([[1.0, -largest, 2.0]]))})

    slots.check(lora(60_000.0), "french")
    with pytest.raises(BringupError, match=f"for `q.weight`: its factors have NaN or infinity in {dtype}") as caught:
        slots.check(lora(value), "french")
    assert "--dtype" in caught.value.findings[0].help


def test_a_bundle_without_slots_is_compiled_with_some():
    """The help has the complete options."""
    french = LoraWeights({"q.weight": LoraFactors(np.ones((1, 4)), np.ones((1, 3)))})
    with pytest.raises(BringupError, match=r"does not fit the bundle: .* without slots for LoRAs") as caught:
        Slots(interface(())).check(french, "french")
    assert caught.value.findings[0].help == "compile with --max-lora-rank 1 --lora-target-modules q"
