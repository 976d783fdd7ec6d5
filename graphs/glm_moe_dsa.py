"""GLM-5: DeepSeek-V3.2 whose indexer has interleaved RoPE; layers may share the keys that an earlier one selected.

K keys that a query attends to; the other axes are those of `layers.mla`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.core.step import BLOCK, Step
from bringup.graphs.decoder import PreNormLayer
from bringup.graphs.deepseek import Defaults
from bringup.graphs.deepseek_v32 import DeepseekV32, DeepseekV32Config, read_v32
from bringup.graphs.layers.mla import LatentAttention
from bringup.graphs.layers.sparse_indexer import Indexer
from bringup.graphs.ops.topk_keys import marked_keys, selected_positions
from bringup.shown import shown

if TYPE_CHECKING:
    from torch import Tensor

ABSENT = Defaults(
    max_positions=202752, q_rank=2048, plain_dim=192, value_dim=256, groups=1, topk_groups=1, eps=1e-5,
    head_dim="any",
)  # fmt: skip
TYPES = {"F": "full", "S": "shared"}  # of `index_topk_pattern`


@dataclass(frozen=True, slots=True, kw_only=True)
class GlmMoeDsaConfig(DeepseekV32Config):
    """`selecting` states for each layer whether it has an indexer. The others attend to the keys that the last layer
    with one selected (arXiv 2603.12201)."""

    family: ClassVar[str] = "glm_moe_dsa"
    model_types: ClassVar[tuple[str, ...]] = ("glm_moe_dsa",)

    selecting: tuple[bool, ...]

    @classmethod
    def settings(cls, fields: Fields, layers: range) -> dict[str, Any]:
        fields.only("indexer_rope_interleave", True)
        fields.only("moe_router_dtype", "float32")
        # Of drafts: later ones may use the keys that the first selected. Here each selects its own.
        fields.get("index_share_for_mtp_iteration", bool, False)
        read_alias(fields, "num_experts", "n_routed_experts")
        common = read_v32(fields, layers, ABSENT, index_heads=32)
        return common | {"selecting": selecting_layers(fields, layers)}


def selecting_layers(fields: Fields, layers: range) -> tuple[bool, ...]:
    """For each layer, whether it has an indexer: by `indexer_types`; without it by `index_topk_pattern`, else each
    `index_topk_freq`-th layer and the first ones.

    A draft, whose layer is after the last, has an indexer.
    """
    count, key = fields.layers("num_hidden_layers"), "indexer_types"
    types, (other, scheduled) = fields.strings(key), _schedule(fields, count)
    if types is None:
        types, key = scheduled, other
    elif other in fields.raw and fields.raw[other] is not None and types != scheduled:
        fields.overridden(other, fields.raw[other], fields.path(key), types)
    if len(types) != count or not {*types} <= {*TYPES.values()} or types[:1] == ["shared"]:
        fields.error("BU122", f"`{key}` is {shown(types)}; {count} of full or shared are needed, the first full", key)
        return (True,) * len(layers)
    return tuple(number >= count or types[number] == "full" for number in layers)


def _schedule(fields: Fields, count: int) -> tuple[str, list[str]]:
    """The types of layers by the other keys, and the key that determines them."""
    pattern: Any = fields.raw.get("index_topk_pattern")
    every = max(1, fields.get("index_topk_freq", int, 1))
    first = fields.get("index_skip_topk_offset", int, 2)
    if isinstance(pattern, str):
        fields.read.add("index_topk_pattern")
        return "index_topk_pattern", [TYPES.get(letter, letter) for letter in pattern]
    if (listed := fields.strings("index_topk_pattern")) is not None:
        return "index_topk_pattern", listed
    own = (max(number - first + 1, 0) % every == 0 for number in range(count))
    return "index_topk_freq", ["full" if is_own else "shared" for is_own in own]


class SharingAttention(LatentAttention):
    """Passes on the positions of the selected keys [N, K], of which the last may be L (`selected_positions`).

    Without an indexer, queries attend to the keys at the positions that it receives.
    """

    def forward(  # type: ignore[override]  it has one more value
        self, x_Nm: Tensor, positions_NK: Tensor, cos: Tensor, sin: Tensor, step: Step
    ) -> tuple[Tensor, Tensor]:
        if self.indexer is None:
            given_NL = marked_keys(positions_NK, step.block_table.shape[1] * BLOCK)
            return self.attended(x_Nm, cos, sin, step, given_NL)[0], positions_NK
        mixed_Nm, selected_NL = self.attended(x_Nm, cos, sin, step, None)
        assert selected_NL is not None
        return mixed_Nm, selected_positions(selected_NL, step.positions, positions_NK.shape[1])


class SharingLayer(PreNormLayer):
    """As `PreNormLayer`, with a `SharingAttention`."""

    def forward(  # type: ignore[override]  it has one more value
        self, x_Nm: Tensor, positions_NK: Tensor, *shared: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.input_layernorm is not None
        mixed_Nm, positions_NK = self.self_attn(self.input_layernorm(x_Nm), positions_NK, *shared)
        x_Nm = x_Nm + mixed_Nm
        return x_Nm + self.mlp(self.post_attention_layernorm(x_Nm)), positions_NK


class GlmMoeDsa(DeepseekV32):
    """If layers share selected keys, their positions are a second value from layer to layer."""

    interleaved_index = True

    def __init__(self, config: GlmMoeDsaConfig, dtype: str = "float32") -> None:
        self.carried = 1 if all(config.selecting) else 2
        super().__init__(config, dtype)
        self.top_k = config.index_topk

    def layer(self, config: Any, index: int) -> PreNormLayer:
        return self.layer_with(config, index, self.indexer(config) if config.selecting[index] else None)

    def layer_with(self, config: Any, index: int, indexer: Indexer | None, **settings: Any) -> PreNormLayer:
        """`settings` are those of `attention`."""
        layer, kind = (PreNormLayer, LatentAttention) if self.carried == 1 else (SharingLayer, SharingAttention)
        attention = self.attention(config, indexer, kind, **settings)
        return layer(config.hidden, config.eps, attention, self.mlp(config, index))

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        import torch

        x_Nm, *rows = super().prologue(step)
        if self.carried == 1:
            return (x_Nm, *rows)
        return (x_Nm, torch.zeros(x_Nm.shape[0], self.top_k, dtype=torch.int64), *rows)

    def final(self, x_Nm: Tensor, *positions: Tensor) -> Tensor:
        return super().final(x_Nm)

    def epilogue(self, x_Rm: Tensor, *positions: Tensor) -> Tensor:
        return super().epilogue(x_Rm)
