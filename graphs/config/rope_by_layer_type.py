"""Two ropes in one config: that of layers with full attention, and that of layers with a sliding window (Gemma 3)."""

from __future__ import annotations

from copy import copy
from typing import Any

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.rope import RopeConfig


def ropes_by_layer_type(
    fields: Fields,
    head_dim: int,
    max_positions: int,
    *,
    local_theta: float,
    local_theta_key: str = "rope_local_base_freq",
    **rope: Any,
) -> tuple[RopeConfig, RopeConfig]:
    """The rope of layers of type `full_attention`, and that of `sliding_attention`.

    `rope_parameters` has a group of settings for each type. Older files have `rope_theta` and `rope_scaling` for the
    first, and `local_theta_key` for the second; `rope_scaling` takes precedence over the first group. `local_theta` is
    the default of `local_theta_key`; `rope` are settings of `RopeConfig.from_hf` for both.
    Source: `Gemma3TextConfig.convert_rope_params_to_dict` of transformers 5.23.
    """
    groups = Fields(
        fields.group("rope_parameters", stops=""), f"{fields.family} rope", at=f"{fields.path('rope_parameters')}."
    )
    scaling = fields.group("rope_scaling", stops="")
    full = groups.group("full_attention", stops="")
    if scaling and not full:  # its own type is "default" if `rope_scaling` has only the older key `type`
        full = {"rope_type": "default"}
    full = {**full, **scaling}
    local = groups.group("sliding_attention", stops="")
    fields.findings += groups.done()
    words = {key: value for key, value in fields.raw.items() if key not in ("rope_parameters", "rope_scaling")}
    whole, part = copy(fields), copy(fields)  # they share the findings and the set of read keys
    whole.raw, part.raw = words | {"rope_parameters": full}, words | {"rope_parameters": local}
    of_full: dict[str, Any] = {"elsewhere": {key: f"{fields.path('rope_scaling')}.{key}" for key in scaling}}
    of_local: dict[str, Any] = rope | {"theta": local_theta, "theta_key": local_theta_key}
    return (
        RopeConfig.from_hf(whole, head_dim, max_positions, **rope, **of_full, group="rope_parameters.full_attention"),
        RopeConfig.from_hf(part, head_dim, max_positions, **of_local, group="rope_parameters.sliding_attention"),
    )
