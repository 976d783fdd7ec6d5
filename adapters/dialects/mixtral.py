"""Mixtral in GGUF: a `llama` with experts, one tensor for each matrix, or in older files for each expert and matrix.

As in Llama's files, rows of q and k are in rope pairs. Names: gguf-py, `tensor_mapping.py`; the older ones are those
of llama.cpp before April 2024 (`ffn_gate.{E}`), which it still reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import S, stack
from bringup.adapters.dialects.dialect import DECODER, Dialect
from bringup.adapters.dialects.llama import in_halves
from bringup.adapters.dialects.tables import add_norms, without_layers
from bringup.adapters.planning.adapter import Adapter, either

if TYPE_CHECKING:
    from bringup.graphs.mixtral import MixtralConfig


def table(config: MixtralConfig) -> Adapter:
    gguf = without_layers(config)
    layer = "model.layers.{L}."
    add_norms(gguf)
    for x in "qk":
        gguf[f"{layer}self_attn.{x}_proj.weight"] = in_halves(x, config.head_dim)["weight"]
    gguf[layer + "self_attn.v_proj.weight"] = S("blk.{L}.attn_v.weight")
    gguf[layer + "self_attn.o_proj.weight"] = S("blk.{L}.attn_output.weight")
    gguf[layer + "mlp.gate.weight"] = S("blk.{L}.ffn_gate_inp.weight")
    for x, axes in (("gate", "f m"), ("up", "f m"), ("down", "m f")):
        older = stack(S(f"blk.{{L}}.ffn_{x}.{{E}}.weight", axes), over="E", n=config.num_experts)
        gguf[f"{layer}mlp.experts.{x}_proj"] = either(older, S(f"blk.{{L}}.ffn_{x}_exps.weight", f"e {axes}"))
    return gguf


dialect = Dialect(
    names=("llama",),
    architecture="MixtralForCausalLM",
    keys={
        **DECODER,
        "attention.sliding_window": "sliding_window",
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
    },
    fixed={"model_type": "mixtral", "hidden_act": "silu"},
    table=table,
    when=lambda hyper: bool(hyper.values.get("expert_count")),
)
