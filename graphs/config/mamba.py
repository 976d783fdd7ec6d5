"""The settings of Mamba 2 layers in the configs of Granite 4 and Bamba."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from bringup.graphs.config.fields import Fields

# Infinity as Python writes it in JSON, and as transformers does since version 5.
UNLIMITED = ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}])


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    """`heads` of `head_dim` channels, whose states have `state_dim` rows. Each of `groups` of consecutive heads shares
    its b and c. `taps`: tokens of the convolution."""

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    taps: int
    conv_bias: bool
    bias: bool

    @classmethod
    def from_fields(cls, fields: Fields, hidden: int) -> Self:
        """From config.json, with the defaults of transformers' BambaConfig and GraniteMoeHybridConfig."""
        heads, expand = fields.size("mamba_n_heads", 128), fields.size("mamba_expand", 2)
        groups = fields.size("mamba_n_groups", 1)
        width = 1 if fields.stopped else max(1, expand * hidden // heads)
        head_dim = width
        if fields.raw.get("mamba_d_head") == "auto":
            fields.read.add("mamba_d_head")
        else:
            head_dim = fields.size("mamba_d_head", width)
        if not fields.doubtful and heads * head_dim != expand * hidden:
            message = f"{heads} heads of {head_dim} channels are not `mamba_expand` · `hidden_size` = {expand * hidden}"
            fields.error("BU121", message, "mamba_d_head", stops="")
        if not fields.doubtful and heads % groups:
            fields.error("BU121", f"{heads} heads do not make {groups} groups of the same size", "mamba_n_groups")
        fields.size("mamba_chunk_size", 256)  # of transformers' computation: it does not affect the result
        fields.only("time_step_limit", *UNLIMITED)  # transformers limits dt of a prompt, but not of a single token
        return cls(
            heads=heads,
            head_dim=head_dim,
            groups=groups,
            state_dim=fields.size("mamba_d_state", 256),
            taps=fields.size("mamba_d_conv", 4),
            conv_bias=fields.get("mamba_conv_bias", bool, True, null=False),
            bias=fields.get("mamba_proj_bias", bool, False, null=False),
        )
