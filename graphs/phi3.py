"""Phi-3, Phi-3.5 and Phi-4: Llama's layer with LongRoPE, of some channels, and a window on all layers.

Abdin et al. 2024; LongRoPE: Ding et al. 2024. Not Phi-3-small, Phi-3.5-MoE and what also sees: other architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from bringup.graphs.config import Fields
from bringup.graphs.decoder import read_common, sliding_window
from bringup.graphs.llama import Llama, LlamaConfig

# Words in Phi-4-mini's config.json that transformers reads none of, with the values that its code is right for.
SWITCHES: dict[str, Any] = {
    "attention_bias": False,
    "mlp_bias": False,
    "lm_head_bias": False,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi3Config(LlamaConfig):
    family: ClassVar[str] = "phi3"

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        fields.raw = _in_full(fields.raw)
        fields.size("original_max_position_embeddings")  # files have it whatever the type of rope
        for key, value in SWITCHES.items():
            fields.only(key, value)
        windows = (sliding_window(fields),) * fields.layers("num_hidden_layers")
        common = read_common(fields, windows, max_positions=4096, eps=1e-5, partial=1.0)
        if (kind := common["rope"].kind) not in ("default", "longrope"):
            said = f"config says rope type `{kind}`; the phi3 graph implements `default`, `longrope` and `su`"
            fields.error("BU122", said, "rope_type")
        return cls(**common, attention_bias=False, mlp_bias=False)


def _in_full(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The words as transformers 5.23 takes them: the context before it was stretched is 4096 where the config does not
    say, even if rope's settings do, and `su` is what longrope was called first."""
    words = {"original_max_position_embeddings": 4096, **raw}
    scaling: Any = raw.get("rope_scaling")
    if isinstance(scaling, dict) and cast("dict[str, Any]", scaling).get("type") == "su":
        words["rope_scaling"] = {**scaling, "type": "longrope"}
    return words


class Phi3(Llama):
    """The same mathematics; parameters have Llama's names."""
