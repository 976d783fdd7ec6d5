"""Text models of Qwen3.5, 3.6 and 3.8: gated DeltaNet, in every fourth layer attention with an output gate.

config.json has the text model's keys under `text_config`, or is that of the text model alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.text_config import of_text
from bringup.graphs.hybrid import Hybrid, HybridConfig, read_hybrid

# Keys on images and videos: none affects a logit of text.
IMAGES = frozenset(
    {
        "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
        "language_model_only",
    }
)  # fmt: skip
OF_ROPE = ("mrope_section", "mrope_interleaved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3_5Config(HybridConfig):
    family: ClassVar[str] = "qwen3_5"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5", "qwen3_5_text")

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return of_text(fields, cls._of_text, IMAGES)

    @classmethod
    def _of_text(cls, fields: Fields) -> Self:
        return cls(**read_text(fields, fields.layers("num_hidden_layers"), kv_heads=4))


class Qwen3_5(Hybrid):
    pass


def read_text(fields: Fields, layers: int, **common: Any) -> dict[str, Any]:
    """The fields of `HybridConfig`, with Qwen3.5's own keys.

    Three positions of a token, those in time, height and width, rotate channels of their own (`mrope_section`). The
    three are equal for text, so every section of the channels is rotated by the same position.
    """
    fields.only("attn_output_gate", True)
    fields.only("output_gate_type", None, "silu", "swish")  # of a DeltaNet; both names are of one function
    fields.only("mamba_ssm_dtype", "float32")
    fields.only("mlp_only_layers", [])  # transformers does not read it
    fields.get("mtp_num_hidden_layers", int, 0)  # of the draft model
    fields.get("mtp_use_dedicated_embeddings", bool, False)
    for key in ("rope_parameters", "rope_scaling"):
        rope = Fields(fields.group(key, stops=""), f"{fields.family} rope", at=f"{fields.path(key)}.")
        if rope.raw.get("mrope_section") is not None and len(rope.indices("mrope_section")) != 3 and not rope.findings:
            rope.error("BU121", "`mrope_section` needs three integers", "mrope_section", stops="")
        rope.get("mrope_interleaved", bool, True)
        fields.findings += rope.findings
    return read_hybrid(fields, layers, further=OF_ROPE, **common)
