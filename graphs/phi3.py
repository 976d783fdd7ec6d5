"""Phi-3, Phi-3.5 and Phi-4: Llama with LongRoPE, partial RoPE, and a sliding window in every layer.

Abdin et al. 2024; LongRoPE: Ding et al. 2024. Phi-3-small, Phi-3.5-MoE and the vision models are other architectures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.windows import sliding_window
from bringup.graphs.decoder import read_common
from bringup.graphs.llama import Llama, LlamaConfig

# Keys of Phi-4-mini's config.json that transformers does not read, with the values that its code implements.
SWITCHES: dict[str, Any] = {
    "attention_bias": False,
    "mlp_bias": False,
    "lm_head_bias": False,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
}
NULLS = ("num_key_value_heads",)
# The earlier name of longrope; transformers 5.23 accepts `yarn` for it as well (`convert_rope_params_to_dict`).
ALIASES = {"su": "longrope", "yarn": "longrope"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi3Config(LlamaConfig):
    family: ClassVar[str] = "phi3"
    model_types: ClassVar[tuple[str, ...]] = ("phi3",)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        # 4096 if the config has no value, even if the settings of rope do; files of every rope type have it
        fields.raw = {"original_max_position_embeddings": 4096, **fields.raw}
        fields.size("original_max_position_embeddings")
        for key, value in SWITCHES.items():
            fields.only(key, value)
        windows = (sliding_window(fields),) * fields.layers("num_hidden_layers")
        common = read_common(fields, windows, max_positions=4096, eps=1e-5, partial=1.0, nulls=NULLS, aliases=ALIASES)
        rope, head_dim = common["rope"], common["head_dim"]
        if rope.kind not in ("default", "longrope"):
            message = (
                f"config sets rope type `{rope.kind}`; the phi3 graph implements `default`, `longrope`, `su` and `yarn`"
            )
            fields.error("BU122", message, "rope_type")
        elif rope.kind == "longrope" and rope.channels(head_dim) % 2:
            message = f"LongRoPE of {rope.channels(head_dim)} channels: transformers' Phi-3 needs an even number"
            fields.error("BU121", message, "partial_rotary_factor")
        return cls(**common, attention_bias=False, mlp_bias=False)


class Phi3(Llama):
    """Computes the same as Llama; parameters have Llama's names."""
