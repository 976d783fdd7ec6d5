"""Rotary position embedding as configs describe it: its type, its settings, and the frequencies they define."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bringup.graphs.config.fields import Fields
from bringup.grouping import first_few
from bringup.shown import short, shown

if TYPE_CHECKING:
    import numpy as np

MOST = 1e18  # theta and factors: their powers and products are float32
NO_SETTINGS: Mapping[str, Any] = {}
NO_ALIASES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The settings of RoPE, which rotates pairs of channels by angles that are proportional to positions.

    `kind` is a key of KINDS. `max_positions` is the trained context in tokens, before it was extended, for types that
    need it. cos and sin are multiplied by `attention_factor`. `partial` is the fraction of a head's channels that is
    rotated. `context_factor` is the ratio of the extended context to the config's positions.
    """

    kind: str = "default"
    theta: float = 10000.0
    partial: float = 1.0
    max_positions: int = 2048
    factor: float = 1.0
    context_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale_all_dim: float = 0.0
    attention_factor: float = 1.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @classmethod
    def from_hf(
        cls,
        fields: Fields,
        head_dim: int,
        max_positions: int,
        *,
        theta: float = 10000.0,
        theta_key: str = "rope_theta",
        partial: float | None = None,
        partial_key: str = "partial_rotary_factor",
        absent: Mapping[str, Any] = NO_SETTINGS,
        aliases: Mapping[str, str] = NO_ALIASES,
        group: str = "rope_parameters",
        elsewhere: Mapping[str, str] = NO_ALIASES,
        further: Collection[str] = (),
    ) -> RopeConfig:
        """Reads `rope_theta` with `rope_scaling` (up to transformers 4) or `rope_parameters` (from 5 on).

        `max_positions` are those that the config states. `partial` is the default of a family that supports
        `partial_rotary_factor`; `proportional` has it in every family. `theta_key` and `partial_key` are the names of
        the two outside `rope_parameters`. `absent` are the settings of a config without any. `aliases` are a family's
        other names for types. `group` is the path of `rope_parameters` in messages, and `elsewhere` has those of its
        keys that are not in it. `further` are keys of the group that the family reads itself.

        If two keys contradict each other, the one that transformers obeys is used, and the other is a warning (BU151):
        `rope_scaling` precedes `rope_parameters`, a key in the group precedes the same key outside of it, and
        `rope_type` precedes `type`.
        """
        older, newer = (fields.group(key, stops="") for key in ("rope_scaling", "rope_parameters"))
        if fields.raw.get("rope_parameters") is None:
            newer = dict(absent)
        elif older and newer and _resolved(older, fields, theta_key) != _resolved(newer, fields, theta_key):
            fields.overridden("rope_parameters", newer, fields.path("rope_scaling"), older)
        raw = older or newer  # the order of transformers' `convert_rope_params_to_dict`
        inner = Fields(raw, f"{fields.family} rope", at=f"{fields.path('rope_scaling' if older else group)}.")
        inner.elsewhere |= {"head_dim": fields.path("head_dim"), **elsewhere}
        theta = _either(inner, "rope_theta", fields, theta_key, theta)
        kind = _kind(inner)
        kind = aliases.get(kind, kind)
        share = 1.0
        if partial is not None or kind == "proportional":
            share = _either(inner, "partial_rotary_factor", fields, partial_key, partial or 1.0)
        rope = cls(theta=theta, partial=share, max_positions=max_positions)
        if inner.has_errors:  # theta or the type is a stand-in
            inner.read |= raw.keys()
        elif kind in KINDS:
            rope = KINDS[kind](replace(rope, kind=kind), inner, fields)
        else:
            inner.read |= raw.keys()  # the settings belong to a type that is rejected as a whole
            inner.error(
                "BU122",
                f"config sets rope type `{short(kind)}`; the {fields.family} graph implements "
                + ", ".join(f"`{known}`" for known in KINDS),
                "rope_type",
                "add the type to graphs/config/rope.py; angles of another type would be wrong at every position",
            )
        rope._check(inner, 2 * head_dim if fields.doubtful else head_dim)
        if not 0 < rope.partial <= 1:
            rope = replace(rope, partial=1.0)  # a stand-in: an error was reported
        inner.read |= {"original_max_position_embeddings", *further}
        if rope.kind != "llama3" and "original_max_position_embeddings" not in {*raw, *fields.raw}:
            rope = replace(rope, context_factor=rope.factor)  # no original context stated: the config's
        if unknown := [key for key in raw if key not in inner.read]:
            settings = first_few((f"`{short(key)}` = {shown(raw[key])}" for key in unknown), 5)
            inner.error("BU120", f"rope of type `{kind}` has no setting {settings}", unknown[0])
        fields.findings += (replace(finding, stops="") for finding in inner.findings)  # rope has no parameters
        return rope

    def _check(self, inner: Fields, head_dim: int) -> None:
        for key, value in (("factor", self.factor), ("rope_theta", self.theta)):
            if not 0 < value < MOST:
                inner.error("BU121", f"`{key}` is {value:g}; it must be above 0 and below {MOST:g}", key)
        if self.kind == "yarn" and self.theta <= 1:
            inner.error("BU121", f"`rope_theta` is {self.theta:g}; yarn needs more than 1", "rope_theta")
        if self.high_freq_factor < self.low_freq_factor:
            inner.error("BU121", "`high_freq_factor` must not be below `low_freq_factor`", "high_freq_factor")
        if not 0 < self.partial <= 1:
            inner.error("BU121", f"`partial_rotary_factor` is {self.partial:g}; a part of 1", "partial_rotary_factor")
        else:
            self._check_channels(inner, head_dim)

    def _check_channels(self, inner: Fields, head_dim: int) -> None:
        d, pairs = self.channels(head_dim), self.pairs(head_dim)
        if not d or 2 * pairs > head_dim:
            message = f"RoPE rotates pairs of channels: {2 * pairs or 'none'} of `head_dim` {head_dim} would be rotated"
            inner.error("BU121", message, "head_dim")
        elif d % 2 and self.kind == "yarn":
            message = f"yarn needs an even number of rotated channels: of `head_dim` {head_dim}, {d} are"
            inner.error("BU121", message, "partial_rotary_factor")
        elif self.kind == "dynamic" and d == 2:
            inner.error(
                "BU121",
                f"of `head_dim` {head_dim}, one pair of channels is rotated; dynamic RoPE needs two",
                "head_dim",
            )
        for key, factors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if factors and len(factors) != pairs:
                inner.error("BU121", f"`{key}` has {len(factors)} numbers for {pairs} pairs of channels", key)

    def channels(self, head_dim: int) -> int:
        """The number of channels that frequencies are computed for: a fraction of `head_dim`, rounded down."""
        return head_dim if self.kind == "proportional" else int(head_dim * self.partial)

    def pairs(self, head_dim: int) -> int:
        """The number of pairs of channels that are rotated: an odd width is rounded up to a complete pair."""
        return (self.channels(head_dim) + 1) // 2

    def frequencies(self, d: int, *, factors: tuple[float, ...] = ()) -> np.ndarray:
        """Radians per position of each pair of d channels, float32 [(d + 1) // 2]; for `dynamic` without scaling.

        theta^(-2i/d) (Su et al. 2021), divided by `factors` (Ding et al. 2024, LongRoPE). `linear` divides by the
        factor (Chen et al. 2023). `llama3` divides low frequencies, leaves high ones unchanged and blends between them
        (meta-llama/llama-models `apply_scaling`), if its two limits differ, unlike those of Llama 4 Scout; so does
        `yarn` (Peng et al. 2023), with other limits. `proportional` rotates the first pairs only, a fraction `partial`
        of all.
        """
        import numpy as np

        exponent = np.arange(0, d, 2, dtype=np.int64).astype(np.float32) / np.float32(d)
        power = np.power(np.float32(self.theta), exponent, dtype=np.float32)
        freq = np.float32(1.0) / (power * np.array(factors, np.float32) if factors else power)
        if self.kind == "proportional":
            freq[int(self.partial * d // 2) :] = 0
        if self.kind in ("linear", "proportional"):
            return freq / np.float32(self.factor)
        if self.kind == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            turns = self.max_positions * freq.astype(np.float64) / (2 * math.pi)
            keep = np.clip((turns - low) / (high - low), 0.0, 1.0) if low < high else (turns > low).astype(np.float64)
            return (freq * (keep + (1 - keep) / self.factor)).astype(np.float32)
        if self.kind == "yarn":
            low, high = self._yarn_range(d)
            divided = np.clip((np.arange(d // 2, dtype=np.float32) - low) / (high - low), 0, 1).astype(np.float32)
            return freq / np.float32(self.factor) * divided + freq * (1 - divided)
        return freq

    def _yarn_range(self, d: int) -> tuple[float, float]:
        """The pairs between which yarn blends: they rotate `beta_fast` and `beta_slow` times in the trained context."""

        def pair(turns: float) -> float:
            return d * math.log(self.max_positions / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        return low, high if low != high else high + 0.001


def _resolved(group: Mapping[str, Any], fields: Fields, theta_key: str) -> dict[str, Any]:
    """The settings of a group in comparable form: with the theta outside of it, and `type` renamed to `rope_type`."""
    stated = {"rope_type": group.get("type", "default"), "rope_theta": fields.raw.get(theta_key)}
    return {key: value for key, value in (stated | dict(group)).items() if key != "type" and value is not None}


def _either(inner: Fields, key: str, fields: Fields, outer_key: str, default: float) -> float:
    """A number in the group of RoPE settings or outside of it; the one in the group takes precedence."""
    if key not in inner.raw:
        inner.elsewhere[key] = fields.path(outer_key)
        return fields.get(outer_key, float, default)
    number, outer = inner.get(key, float), fields.get(outer_key, float, default, null=default)
    if inner.valid(key) and fields.valid(outer_key) and fields.raw.get(outer_key) is not None and outer != number:
        fields.overridden(outer_key, outer, inner.path(key), number)
    return number


def _kind(inner: Fields) -> str:
    """The type of rope: `rope_type`, or `type` in files of transformers up to 4.42."""
    older = inner.get("type", str, "default", null="" if "rope_type" in inner.raw else None)
    kind = inner.get("rope_type", str, older)
    if inner.valid("type", "rope_type") and inner.raw.get("type") is not None and older != kind:
        inner.overridden("type", older, inner.path("rope_type"), kind)
    return kind


def _default(rope: RopeConfig, inner: Fields, fields: Fields) -> RopeConfig:
    return rope


def _by_factor(rope: RopeConfig, inner: Fields, fields: Fields) -> RopeConfig:
    return replace(rope, factor=inner.get("factor", float, 1.0 if rope.kind == "proportional" else None))


def _llama3(rope: RopeConfig, inner: Fields, fields: Fields) -> RopeConfig:
    return replace(
        rope,
        factor=inner.get("factor", float),
        low_freq_factor=inner.get("low_freq_factor", float),
        high_freq_factor=inner.get("high_freq_factor", float),
        max_positions=_original(inner, fields, rope.max_positions),
    )


def _yarn(rope: RopeConfig, inner: Fields, fields: Fields) -> RopeConfig:
    original = _original(inner, fields, rope.max_positions)
    factor = rope.max_positions / original
    factor = inner.positive("factor", factor, null=factor)
    mscale, all_dim = (inner.get(key, float, 0.0, null=0.0) for key in ("mscale", "mscale_all_dim"))
    scale = yarn_scale(factor, mscale) / yarn_scale(factor, all_dim) if mscale and all_dim else yarn_scale(factor)
    return replace(
        rope,
        factor=factor,
        max_positions=original,
        beta_fast=inner.positive("beta_fast", 32.0, null=32.0),
        beta_slow=inner.positive("beta_slow", 1.0, null=1.0),
        truncate=inner.get("truncate", bool, True, null=False),
        mscale_all_dim=all_dim,
        attention_factor=inner.positive("attention_factor", scale, null=scale),
    )


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """The factor on attention scores for a context extended by `factor` (Peng et al. 2023, equation 22)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(rope: RopeConfig, inner: Fields, fields: Fields) -> RopeConfig:
    original = _original(inner, fields, rope.max_positions)
    factor = rope.max_positions / original
    factor = inner.positive("factor", factor, null=factor)
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return replace(
        rope,
        factor=factor,
        max_positions=original,
        short_factor=inner.numbers("short_factor"),
        long_factor=inner.numbers("long_factor"),
        attention_factor=inner.positive("attention_factor", scale, null=scale),
    )


def _original(inner: Fields, fields: Fields, stated: int) -> int:
    """The context before it was extended: outside of the RoPE settings (Phi-3), in them, or the stated positions."""
    key = "original_max_position_embeddings"
    inside = inner.size(key, stated, null=stated if key in fields.raw else None)
    original = fields.size(key, inside)
    if inner.raw.get(key) is not None and original != inside:
        inner.overridden(key, inside, fields.path(key), original)
    return original


# Reads the settings of each type: those of transformers 5.23, `modeling_rope_utils.ROPE_INIT_FUNCTIONS`, that text
# decoders use.
KINDS: dict[str, Callable[[RopeConfig, Fields, Fields], RopeConfig]] = {
    "default": _default,
    "linear": _by_factor,
    "dynamic": _by_factor,
    "proportional": _by_factor,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
