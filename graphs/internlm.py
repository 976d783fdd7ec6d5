"""InternLM 1: Llama with attention biases (modeling_internlm.py of internlm/internlm-7b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.decoder import read_common
from bringup.graphs.llama import Llama, LlamaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class InternLMConfig(LlamaConfig):
    family: ClassVar[str] = "internlm"
    model_types: ClassVar[tuple[str, ...]] = ("internlm",)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        theta = _theta(fields)
        for key, value in (("rope_theta", theta), ("rope_scaling", None), ("rope_parameters", None)):
            fields.only(key, value)  # the published code does not read them
        windows = (None,) * fields.layers("num_hidden_layers")
        return cls(
            **read_common(fields, windows, absent={"rope_theta": theta}),
            attention_bias=fields.get("bias", bool, True),
            mlp_bias=False,
        )


def _theta(fields: Fields) -> float:
    """Theta, from `rotary`. Type `dynamic` increases theta past `max_position_embeddings`; the context ends there."""
    if "rotary" in fields.raw and fields.raw["rotary"] is None:
        fields.error("BU121", f"config key `rotary` is null; {fields.family} needs an object", "rotary")
    rotary = Fields(fields.group("rotary"), f"{fields.family} rotary")
    rotary.choice("type", ("dynamic", "origin"), "dynamic")
    rotary.positive("scaling_factor", 1.0)
    theta = rotary.positive("base", 10000.0)
    fields.findings += rotary.done()
    return theta


class InternLM(Llama):
    """Computes the same as Llama; parameters have the same names."""
