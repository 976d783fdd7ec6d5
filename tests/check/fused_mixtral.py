"""Mixtral with gate and up in one tensor: a model file whose rule joins two matrices of each expert and stacks them.

N tokens of the step · m hidden · e experts · f their feed-forward · K experts selected for a token
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import S, cat, stack
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.graphs.core.module import Module, Param
from bringup.graphs.decoder import PreNormLayer
from bringup.graphs.family import Family
from bringup.graphs.mixtral import Mixtral, MixtralConfig
from bringup.graphs.ops.activation import silu
from bringup.graphs.ops.moe_experts import blocks_of, expert_linear, from_blocks, to_blocks

if TYPE_CHECKING:
    from torch import Tensor


class FusedExperts(Module):
    def __init__(self, e: int, m: int, f: int) -> None:
        super().__init__()
        self.count = e
        self.w13 = Param("e out:(gate:f | up:f) in:m", e=e, f=f, m=m)
        self.w2 = Param("e out:m in:f", e=e, f=f, m=m)

    def forward(self, x_Nm: Tensor, selected_NK: Tensor, weights_NK: Tensor) -> Tensor:
        blocks = blocks_of(selected_NK, self.count)
        gate, up = expert_linear(to_blocks(x_Nm, blocks), self.w13, None, blocks.expert_B).chunk(2, dim=-1)
        return from_blocks(expert_linear(silu(gate) * up, self.w2, None, blocks.expert_B), weights_NK, blocks)


class Fused(Mixtral):
    def layer(self, config: MixtralConfig, index: int) -> PreNormLayer:
        layer = super().layer(config, index)
        layer.mlp.experts = FusedExperts(config.num_experts, config.hidden, config.ffn)
        return layer


def adapter(config: MixtralConfig) -> Adapter:
    fused = Adapter("fused", defaults=("out in", "vocab m"), prefix="model.")
    fused["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    fused["model.layers.{L}.{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    fused["model.layers.{L}.self_attn.{x:q|k|v|o}_proj.weight"] = S("layers.{L}.self_attn.{x}_proj.weight")
    moe = "layers.{L}.block_sparse_moe."
    fused["model.layers.{L}.mlp.gate.weight"] = S(moe + "gate.weight")
    gate, up = S(moe + "experts.{E}.w1.weight", "f m"), S(moe + "experts.{E}.w3.weight", "f m")
    down = S(moe + "experts.{E}.w2.weight", "m f")
    fused["model.layers.{L}.mlp.experts.w13"] = stack(cat(gate, up, axis="out"), over="E", n=config.num_experts)
    fused["model.layers.{L}.mlp.experts.w2"] = stack(down, over="E", n=config.num_experts)
    fused["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    return fused


family = Family(name="fused", graph=Fused, config=MixtralConfig, adapter=adapter)
