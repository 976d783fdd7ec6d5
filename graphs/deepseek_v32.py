"""DeepSeek-V3.2: V3 with sparse attention, keys chosen by a lightning indexer (DeepSeek-V3.2 report §2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import listed_layers
from bringup.graphs.decoder import PreNormLayer
from bringup.graphs.deepseek import Deepseek, DeepseekConfig, Defaults, sparse_layers
from bringup.graphs.deepseek_v3 import read_v3
from bringup.graphs.layers.sparse_indexer import Indexer


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekV32Config(DeepseekConfig):
    """A query attends to `index_topk` keys, selected by `index_heads` heads of `index_dim` channels."""

    family: ClassVar[str] = "deepseek_v32"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v32",)

    index_heads: int
    index_dim: int
    index_topk: int

    @classmethod
    def settings(cls, fields: Fields, layers: range) -> dict[str, Any]:
        return read_v32(fields, layers, Defaults(max_positions=163840), index_heads=64)


def read_v32(fields: Fields, layers: range, absent: Defaults, *, index_heads: int) -> dict[str, Any]:
    """The fields that V3.2 and GLM-5 read alike; `absent` and `index_heads` are the defaults."""
    fields.only("rope_interleave", True)
    fields.only("mlp_bias", False)
    common = read_v3(fields, typed_sparse_layers(fields, layers, dense=3), absent)
    if common["q_rank"] is None:
        fields.error("BU121", "`q_lora_rank` is null; the indexer reads the queries' latent", "q_lora_rank")
    return common | read_indexer(fields, common["head_dim"], heads=index_heads)


def read_indexer(fields: Fields, rotated: int, *, heads: int) -> dict[str, Any]:
    """The fields of an indexer whose keys have `rotated` channels with RoPE; `heads` is the default of their number."""
    count = fields.layers("num_hidden_layers")  # older files of transformers have the second key
    fields.only("layer_types", ["indexed_attention"] * count, ["deepseek_sparse_attention"] * count)
    dim = fields.size("index_head_dim", 128)
    if dim < rotated:
        message = f"`index_head_dim` is {dim}, but RoPE rotates `qk_rope_head_dim` {rotated} channels"
        fields.error("BU121", message, "index_head_dim")
    return {
        "index_heads": fields.size("index_n_heads", heads),
        "index_dim": dim,
        "index_topk": fields.size("index_topk", 2048),
    }


def typed_sparse_layers(fields: Fields, layers: range, *, dense: int) -> tuple[bool, ...]:
    """For each layer, whether it has experts: by `mlp_layer_types` if present; otherwise, and in a draft, as V3."""
    counted = sparse_layers(fields, layers, dense=dense)
    listed = dict(enumerate(listed_layers(fields, fields.layers("num_hidden_layers"))))
    return tuple(listed.get(number, sparse) for number, sparse in zip(layers, counted, strict=True))


class DeepseekV32(Deepseek):
    interleaved_index: ClassVar[bool] = False

    def layer(self, config: Any, index: int) -> PreNormLayer:
        attention = self.attention(config, self.indexer(config))
        return PreNormLayer(config.hidden, config.eps, attention, self.mlp(config, index))

    def indexer(self, config: DeepseekV32Config, **settings: Any) -> Indexer:
        """`settings` are further ones of `Indexer`."""
        return Indexer(
            config.hidden,
            config.q_rank or config.hidden,
            heads=config.index_heads,
            d=config.index_dim,
            top_k=config.index_topk,
            interleaved=self.interleaved_index,
            **settings,
        )
