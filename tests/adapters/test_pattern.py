"""Name patterns: one question for many patterns has the answer of each asked on its own."""

from __future__ import annotations

from bringup.adapters.algebra.pattern import fitting, match

PATTERNS = (
    "layers.{L}.{rest:**}", "layers.{L}.gain", "{module:**}.input_scale", "{module:**}.{t:cos|sin}_{t}", "**.{L}.{L}",
    "head.weight", "{n:norm|embed}.weight",
)  # fmt: skip
NAMES = (
    "layers.1.gain", "layers.x.gain", "module.layers.1.gain", "a.b.input_scale", "input_scale", "a.cos_cos",
    "a.cos_sin", "a.2.2", "a.2.3", "head.weight", "module.head.weight", "norm.weight", "norms.weight", "",
)  # fmt: skip


def test_what_fits_any_of_several_patterns_is_what_matches_one() -> None:
    for several in (PATTERNS, PATTERNS[:1], PATTERNS[2:4], PATTERNS[5:6], ()):
        fits = fitting(several)
        for name in NAMES:
            assert bool(fits(name)) == any(match(pattern, name) is not None for pattern in several), (several, name)
