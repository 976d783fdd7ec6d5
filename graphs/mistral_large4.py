"""Mistral Large 4: MLA with sparse attention, whose queries grow by learned factors; layers share latents and keys.

Every fourth layer has no rope; the frequencies of the others are learned. config.json has the text model's keys under
`text_config`, or is the text model's. Names and formulas: transformers' modeling_mistral_large4.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from bringup.graphs.config.aliases import read_alias
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.moe import RoutingConfig
from bringup.graphs.config.rotated_layers import read_rotated
from bringup.graphs.config.text_config import of_text
from bringup.graphs.core.module import Module
from bringup.graphs.decoder import PreNormLayer
from bringup.graphs.deepseek import Defaults, read_deepseek
from bringup.graphs.deepseek_v32 import read_indexer, typed_sparse_layers
from bringup.graphs.glm_moe_dsa import GlmMoeDsa, GlmMoeDsaConfig, selecting_layers
from bringup.graphs.layers.moe_shared import Float32SoftmaxRouter
from bringup.graphs.layers.query_growth import LearnedGrowth
from bringup.graphs.layers.rotary import LearnedRope

ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2048.0, "original_max_position_embeddings": 512,
    "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0,
}  # fmt: skip
ABSENT = Defaults(
    max_positions=1 << 20, expert_ffn=6144, q_rank=None, plain_dim=64, eps=1e-5, head_dim="any", rope={"absent": ROPE}
)
# Keys on images: none affects a logit of text.
IMAGES = frozenset(
    {
        "vision_config", "image_token_index", "image_token_id", "projector_hidden_act", "vision_feature_layer",
        "multimodal_projector_bias", "spatial_merge_size",
    }
)  # fmt: skip
SOURCES = "kv_source_layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralLarge4Config(GlmMoeDsaConfig):
    """`rotated`: which layers have rope. `sources`: the layer whose latents each layer attends to, its own or an
    earlier one's."""

    family: ClassVar[str] = "mistral_large4"
    model_types: ClassVar[tuple[str, ...]] = ("mistral_large4", "mistral_large4_text")

    rotated: tuple[bool, ...]
    sources: tuple[int, ...]

    @property
    def unrotated(self) -> set[int]:
        return {index for index, rotates in enumerate(self.rotated) if not rotates}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return of_text(fields, IMAGES, cls._of_text, ties="outer")

    @classmethod
    def _of_text(cls, fields: Fields) -> Self:
        return cls.of_layers(fields, range(fields.layers("num_hidden_layers")))

    @classmethod
    def settings(cls, fields: Fields, layers: range) -> dict[str, Any]:
        for alias in ("num_experts", "num_local_experts"):
            read_alias(fields, alias, "n_routed_experts")
        fields.only("norm_topk_prob", True)  # transformers does not read it
        sparse = typed_sparse_layers(fields, layers, dense=1)
        routing = RoutingConfig.from_fields(
            fields, used=any(sparse), experts=128, per_token=4, groups=1, topk_groups=1, factor=1.0
        )
        common = read_deepseek(fields, sparse, ABSENT)
        if (kind := common["rope"].kind) in ("dynamic", "longrope"):
            key = "rope_scaling" if fields.raw.get("rope_scaling") else "rope_parameters"
            message = f"`{key}` has the type `{kind}`: its frequencies vary with the length, and cannot be learned"
            fields.error("BU122", message, key, "use a type with fixed frequencies, such as `yarn`")
        rotated = read_rotated(fields, len(layers), empty=False)
        return common | {
            **read_indexer(fields, common["head_dim"], heads=32),
            "routing": replace(routing, bias=False),
            "selecting": selecting_layers(fields, layers),
            "rotated": rotated,
            "sources": _sources(fields, rotated),
            "logit_cap": fields.positive("final_logit_softcapping", 30.0),
        }


def _sources(fields: Fields, rotated: tuple[bool, ...]) -> tuple[int, ...]:
    """By `kv_source_layers`; by default, each layer is its own source.

    transformers' layers that share latents attend to those of the last layer before them that others share and that
    has rope as they do, or as they has none. A list that states another layer is an error.
    """
    own, stated = tuple(range(len(rotated))), fields.indices(SOURCES)
    if fields.raw.get(SOURCES) is None or fields.stopped or not fields.valid("no_rope_layers"):
        return own
    if len(stated) != len(own):
        fields.error("BU121", f"`{SOURCES}` has {len(stated)} numbers for {len(own)} layers", SOURCES, stops="")
        return own
    latest: dict[bool, int] = {}
    for index, source in enumerate(stated):
        if source == index:
            if index in stated[index + 1 :]:
                latest[rotated[index]] = index
            continue
        if not 0 <= source < index or stated[source] != source:
            message = f"`{SOURCES}` has {source} for layer {index}: not an earlier layer that is its own source"
        elif latest.get(rotated[index]) != source:
            last = f"that is {latest[rotated[index]]}" if rotated[index] in latest else "there is none"
            message = (
                f"`{SOURCES}` has {source} for layer {index}, but transformers uses the last earlier layer that others "
                f"share and that {'has' if rotated[index] else 'lacks'} rope too: {last}"
            )
        else:
            continue
        fields.error("BU122", message, SOURCES)
        return own
    return stated


class MistralLarge4(GlmMoeDsa):
    router = Float32SoftmaxRouter

    def __init__(self, config: MistralLarge4Config, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.model.rotary = LearnedRope(config.rope, config.head_dim)

    def all_layers(self, config: MistralLarge4Config) -> list[Module]:
        layers: list[PreNormLayer] = []
        for index, source in enumerate(config.sources):
            rotates, heads = config.rotated[index], config.index_heads
            indexer = None
            if config.selecting[index]:
                indexer = self.indexer(config, rotates=rotates, normed=True, growth=LearnedGrowth("i", heads))
            sizes = {} if rotates else {"n": config.plain_dim + config.head_dim, "p": 0}
            layer = self.layer_with(
                config,
                index,
                indexer,
                growth=LearnedGrowth("h", config.num_heads),
                eps=config.eps,
                of=None if source == index else layers[source].self_attn.latents,
                **sizes,
            )
            layers.append(layer)
        return [*layers]
