"""Which layers have rope, in the configs of Llama 4 and Mistral Large 4."""

from __future__ import annotations

from bringup.graphs.config.fields import Fields

KEY = "no_rope_layers"


def read_rotated(fields: Fields, layers: int, *, empty: bool) -> tuple[bool, ...]:
    """By `no_rope_layers`, where 0 is a layer without rope; by default all but each `no_rope_layer_interval`-th.

    `empty`: an empty list is the default too, not an error.
    """
    every = fields.size("no_rope_layer_interval", 4)
    stated = fields.indices(KEY)
    if fields.raw.get(KEY) is None or (empty and not stated):
        return tuple((index + 1) % every != 0 for index in range(layers))
    if len(stated) < layers and not fields.stopped:
        message = f"`{KEY}` has {len(stated)} numbers for {layers} layers"
        fields.error("BU121", message, KEY, stops="")
    return tuple(stated[index : index + 1] != (0,) for index in range(layers))
