"""EXAONE 3.0 and 3.5: Llama architecture, other parameter names (LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from bringup.graphs.config.fields import Fields
from bringup.graphs.decoder import read_common
from bringup.graphs.llama import Llama, LlamaConfig

KEYS = {"hidden_act": "activation_function", "rms_norm_eps": "layer_norm_epsilon"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaoneConfig(LlamaConfig):
    family: ClassVar[str] = "exaone"
    model_types: ClassVar[tuple[str, ...]] = ("exaone",)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Requires the epsilon of norms, because versions of the published code have different defaults."""
        layers = fields.layers("num_layers")
        fields.only("num_hidden_layers", layers)  # another name of the same key
        return cls(
            **read_common(fields, (None,) * layers, eps=None, tied=True, keys=KEYS, nulls=("num_key_value_heads",)),
            attention_bias=False,
            mlp_bias=False,
        )


class Exaone(Llama):
    """Computes the same as Llama; parameters have Llama's names."""
