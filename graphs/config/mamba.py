"""The settings of Mamba 2 layers in the configs of Granite 4, Bamba and Falcon-H1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from bringup.graphs.config.fields import Fields

# Infinity as Python writes it in JSON, and as transformers does since version 5.
UNLIMITED = ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}])


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    """`heads` of `head_dim` channels, whose states have `state_dim` rows. Each of `groups` of consecutive heads shares
    its b and c. `taps`: tokens of the convolution. `bias` and `out_bias` are of the projections into and out of the
    mixer; `factors` multiply the results of the former: gate, x, b, c and dt. `norm`: whether there is one, before or
    after the product with the gate.
    """

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    taps: int
    conv_bias: bool
    bias: bool
    out_bias: bool
    norm: Literal["before", "after", "none"] = "after"
    factors: tuple[float, ...] = (1.0,) * 5

    @classmethod
    def from_fields(cls, fields: Fields, hidden: int, *, width: int | None = None) -> Self:
        """From config.json, with the defaults of transformers' BambaConfig and GraniteMoeHybridConfig.

        `width` is the default of `mamba_d_ssm`, the channels of all heads, if the family has that key.
        """
        heads, expand = fields.size("mamba_n_heads", 128), fields.size("mamba_expand", 2)
        groups = fields.size("mamba_n_groups", 1)
        inner, source = expand * hidden, "`mamba_expand` · `hidden_size`"
        if width is not None:
            stated = fields.raw.get("mamba_d_ssm", width) is not None
            inner, source = fields.size("mamba_d_ssm", width, null=inner), "`mamba_d_ssm`" if stated else source
        head_dim = each = 1 if fields.stopped else max(1, inner // heads)
        if fields.raw.get("mamba_d_head") == "auto":
            fields.read.add("mamba_d_head")
        else:
            head_dim = fields.size("mamba_d_head", each)
        if not fields.doubtful and heads * head_dim != inner:
            message = f"{heads} heads of {head_dim} channels are not {source} = {inner}"
            fields.error("BU121", message, "mamba_d_head", stops="")
        if not fields.doubtful and heads % groups:
            fields.error("BU121", f"{heads} heads do not make {groups} groups of the same size", "mamba_n_groups")
        fields.size("mamba_chunk_size", 256)  # of transformers' computation: it does not affect the result
        fields.only("time_step_limit", *UNLIMITED)  # transformers limits dt of a prompt, but not of a single token
        bias = fields.get("mamba_proj_bias", bool, False, null=False)
        return cls(
            heads=heads,
            head_dim=head_dim,
            groups=groups,
            state_dim=fields.size("mamba_d_state", 256),
            taps=fields.size("mamba_d_conv", 4),
            conv_bias=fields.get("mamba_conv_bias", bool, True, null=False),
            bias=bias,
            out_bias=bias,
        )
