"""The sliding windows of layers, as configs describe them."""

from __future__ import annotations

from bringup.graphs.config.fields import Fields
from bringup.shown import shown

SWITCH = "use_sliding_window"  # Qwen's key: without it, no layer has a window


def window_of_layers(fields: Fields, layers: int, window: int | None) -> tuple[int | None, ...] | None:
    """The sliding window of each layer by `layer_types`, in tokens; None if the config has no `layer_types`.

    Reports BU122 for an invalid list, and BU121 for a window layer without a window, as transformers does when it
    computes the masks.
    """
    types = fields.strings("layer_types")
    if types is None:
        return None
    if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
        fields.error("BU122", f"`layer_types` is {shown(types)}; {layers} of full_ or sliding_attention", "layer_types")
    if "sliding_attention" in types and window is None:
        off = SWITCH in fields.read and not fields.raw.get(SWITCH)
        key = SWITCH if off else "sliding_window"
        message = f"`layer_types` lists sliding_attention, and `{key}` {fields.state(key)}"
        help = f"set `{key}` to {'true' if off else 'the number of tokens'}, or list full_attention only"
        fields.error("BU121", message, key, help, stops="")
    of_layers = [window if kind == "sliding_attention" else None for kind in types[:layers]]
    return (*of_layers, *[None] * (layers - len(of_layers)))  # the number of layers is that of another key


def alternating_windows(fields: Fields, layers: int, window: int | None, *, full_every: int) -> tuple[int | None, ...]:
    """The window of each layer by `layer_types`; by default every `full_every`-th layer has full attention."""
    if (of_layers := window_of_layers(fields, layers, window)) is not None:
        return of_layers
    if window is None and full_every > 1:
        fields.error("BU121", "`sliding_window` is null, and some layers have one", "sliding_window", stops="")
    return tuple(window if (index + 1) % full_every else None for index in range(layers))


def switched_window(fields: Fields, absent: int) -> int | None:
    """`sliding_window`, in tokens, if `use_sliding_window`; otherwise None, whatever its value."""
    if fields.get(SWITCH, bool, False):
        return sliding_window(fields, absent)
    fields.optional("sliding_window", int)
    return None


def sliding_window(fields: Fields, absent: int | None = None) -> int | None:
    """`sliding_window`, in tokens; `absent` if the config has none."""
    fields.read.add("sliding_window")
    window = fields.optional("sliding_window", int) if "sliding_window" in fields.raw else absent
    if window is not None and window < 1:
        message = f"`sliding_window` is {window}; a window has at least 1 token"
        fields.error("BU121", message, "sliding_window", stops="")
    return window
