"""Ministral 3: Llama without biases whose queries grow with their position.

Names and formulas: transformers' modeling_ministral3.py. N tokens of the step · h query heads · g key heads
· d channels of a head
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.query_growth import OF_ROPE, read_growth
from bringup.graphs.config.windows import sliding_window
from bringup.graphs.core.step import Step
from bringup.graphs.decoder import CausalLM, DecoderConfig, PreNormLayer, read_common
from bringup.graphs.layers.attention import GroupedAttention
from bringup.graphs.layers.mlp import GatedMLP
from bringup.graphs.layers.query_growth import QueryGrowth

if TYPE_CHECKING:
    from torch import Tensor

ROPE = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
MAX_POSITIONS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Ministral3Config(DecoderConfig):
    """`growth` has the factor and the period of `query_growth`."""

    family: ClassVar[str] = "ministral3"
    model_types: ClassVar[tuple[str, ...]] = ("ministral3",)

    growth: tuple[float, int]

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        layers, window = fields.layers("num_hidden_layers"), sliding_window(fields)
        kind = "full_attention" if window is None else "sliding_attention"
        fields.only("layer_types", [kind] * layers, None)  # transformers' layers do not read it
        return cls(
            **read_common(
                fields, (window,) * layers, max_positions=MAX_POSITIONS, kv_heads=8, head_dim=128, ffn=14336, eps=1e-5,
                absent=ROPE, further=OF_ROPE,
            ),
            growth=read_growth(fields, ROPE, MAX_POSITIONS),
        )  # fmt: skip


class GrowingAttention(GroupedAttention):
    """Attention whose rotated queries are multiplied by their growth, of a factor and a period."""

    def __init__(self, m: int, h: int, g: int, d: int, *, window: int | None, growth: tuple[float, int]) -> None:
        super().__init__(m, h, g, d, window=window)
        self.growth = QueryGrowth(*growth)

    def with_positions(
        self, q_NHD: Tensor, k_NGD: Tensor, cos: Tensor | None, sin: Tensor | None, step: Step
    ) -> tuple[Tensor, Tensor]:
        q_NHD, k_NGD = super().with_positions(q_NHD, k_NGD, cos, sin, step)
        return self.growth(q_NHD, step), k_NGD


class Ministral3(CausalLM):
    def layer(self, config: Ministral3Config, index: int) -> PreNormLayer:
        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim
        attention = GrowingAttention(m, h, g, d, window=config.windows[index], growth=config.growth)
        return PreNormLayer(m, config.eps, attention, GatedMLP(m, config.ffn, config.activation))
