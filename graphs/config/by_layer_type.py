"""Layers of two types, with full attention and with a window, which have other heads and other ropes (Gemma 4)."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

from bringup.graphs.config.fields import Fields
from bringup.graphs.config.rope import RopeConfig
from bringup.graphs.config.windows import alternating_windows, sliding_window
from bringup.shown import short, shown

Windows = tuple[int | None, ...]
ROPES: dict[str, dict[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


@dataclass(frozen=True, slots=True)
class Heads:
    """`count` heads of keys of `width` channels each. Without `values`, values are a function of the keys' projection.

    `key` is the config's key for `count`.
    """

    count: int
    width: int
    values: bool = True
    key: str = field(default="num_key_value_heads", compare=False)


def read_layer_types(fields: Fields, window: int) -> tuple[Windows, int]:
    """The window of each layer, None in the last, and the number of layers that share keys and values.

    `window` is the size of a window if the config has none.
    """
    layers, size = fields.layers("num_hidden_layers"), sliding_window(fields, window)
    windows = (*alternating_windows(fields, layers, size, full_every=6)[:-1], None)
    shared = fields.size("num_kv_shared_layers", 0, minimum=0)
    own = windows[: max(layers - shared, 0)]
    if not fields.stopped and {*own} != {*windows}:
        message = f"the first {len(own)} of {layers} layers do not have a layer of each type"
        help = "the others share the keys and values of the last one of their type among them"
        fields.error("BU122", f"`num_kv_shared_layers` is {shared}: {message}", "num_kv_shared_layers", help)
        return windows, 0
    return windows, 0 if fields.stopped else shared


def read_heads(fields: Fields, windows: Windows) -> Heads:
    """The heads of layers with full attention.

    `per_layer_config`, which transformers 5.24 writes, takes precedence over `global_head_dim` and
    `num_global_key_value_heads`.
    """
    count, width = fields.size("num_key_value_heads", 4), fields.size("head_dim", 256)
    alike = fields.get("attention_k_eq_v", bool, False)
    other_width, other_count = fields.size("global_head_dim", 512), fields.optional("num_global_key_value_heads", int)
    if "per_layer_config" in fields.raw:
        return replace(_listed(fields, windows, Heads(count, width)), values=not alike)
    if not alike or other_count is None:
        return Heads(count, other_width, not alike)
    key = "num_global_key_value_heads"
    return Heads(fields.size(key), other_width, not alike, key)


def _listed(fields: Fields, windows: Windows, heads: Heads) -> Heads:
    """The heads that `per_layer_config` has for all layers with full attention, and for no other layer."""
    group = fields.group("per_layer_config", stops="")
    given = {int(layer): words for layer, words in group.items() if layer.isdecimal()}
    full = {layer for layer, window in enumerate(windows) if window is None}
    texts = {repr(words) for words in given.values()}
    first: Any = next(iter(given.values()), None)
    words = cast("dict[str, Any]", first) if isinstance(first, dict) else {}
    known = not given or (isinstance(first, dict) and words.keys() <= {"head_dim", "num_key_value_heads"})
    if len(given) < len(group) or given.keys() - full or (given and full - given.keys()) or len(texts) > 1 or not known:
        if fields.valid("per_layer_config") and not fields.stopped:
            message = f"config sets `per_layer_config` = {shown(group)}; the {fields.family} graph implements"
            help = "the same `head_dim` and `num_key_value_heads` for all layers of full_attention, and for no other"
            fields.error("BU122", f"{message} {help}", "per_layer_config")
        return heads
    inner = Fields(words, fields.family, at=f"{fields.path('per_layer_config')}.")
    count = inner.size("num_key_value_heads", heads.count)
    width = inner.size("head_dim", heads.width)
    fields.findings += inner.findings
    return Heads(count, width)


def read_ropes(
    fields: Fields, windows: Windows, width: int
) -> tuple[Fields, dict[str, Any], Callable[[RopeConfig, int], dict[str, RopeConfig]]]:
    """The keys and settings with which `read_common` reads the rope of layers with a window; and a function.

    The function returns the ropes of both types of layers from that one and the number of positions. `width` is that of
    the heads of layers with full attention.
    """
    groups = fields.group("rope_parameters", stops="") if fields.raw.get("rope_parameters") is not None else ROPES
    used = ["full_attention"] + ["sliding_attention"] * any(window is not None for window in windows)
    if missing := [kind for kind in used if not isinstance(groups.get(kind), dict)]:
        message = f"`rope_parameters` has no settings for layers of {missing[0]}"
        fields.error("BU121", message, "rope_parameters", stops="")
    if unknown := sorted(groups.keys() - ROPES.keys()):
        message = f"`rope_parameters` has settings for layers of {short(unknown[0])}, which the model does not have"
        fields.error("BU120", message, "rope_parameters")

    def view(kind: str) -> tuple[Fields, dict[str, Any]]:
        found: Any = groups.get(kind)
        words = cast("dict[str, Any]", found) if isinstance(found, dict) else ROPES[kind]
        part = copy(fields)  # it shares the findings and the set of read keys
        hidden = ("rope_parameters", "rope_scaling")
        part.raw = {key: value for key, value in fields.raw.items() if key not in hidden} | {"rope_parameters": words}
        settings: dict[str, Any] = {"group": f"rope_parameters.{kind}", "theta": ROPES[kind]["rope_theta"]}
        return part, settings

    def ropes(local: RopeConfig, positions: int) -> dict[str, RopeConfig]:
        part, settings = view("full_attention")
        return {"rope": RopeConfig.from_hf(part, width, positions, **settings), "local_rope": local}

    return *view("sliding_attention"), ropes
