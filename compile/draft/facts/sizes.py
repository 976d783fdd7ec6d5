"""The sizes of a drafted decoder, and the shapes of its parts."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.compile.draft.facts.words import LATENT
from bringup.spec import Shape


@dataclass(frozen=True, slots=True)
class Sizes:
    """m hidden, h query heads, g key heads, d channels, f feed-forward, x width of an expert, e experts, s width of the
    shared expert, vocab. `latent`: attention is multi-head latent attention."""

    m: int
    h: int
    g: int
    d: int
    f: int
    vocab: int
    layers: int
    e: int = 0
    x: int = 0
    s: int = 0
    latent: bool = False

    def shapes(self, role: str) -> list[Shape]:
        """The possible shapes of a tensor with a role, output first; learned positions have any number of rows."""
        m, heads, keys = self.m, self.h * self.d, self.g * self.d
        s = self.s or self.f
        widths = [width for width in dict.fromkeys((self.f, self.x)) if width]
        return {
            "q": [(heads, m)], "k": [(keys, m)], "v": [(keys, m)], "o": [(m, heads)], "qkv": [(heads + 2 * keys, m)],
            "gate": [(w, m) for w in widths], "up": [(w, m) for w in widths], "down": [(m, w) for w in widths],
            "gate_up": [(2 * w, m) for w in widths], "router": [(self.e, m)] if self.e else [],
            "router_bias": [(self.e,), (1, self.e)], "shared_gate_up": [(2 * s, m)],
            "shared_gate": [(s, m)], "shared_up": [(s, m)], "shared_down": [(m, s)],
            "shared_router": [(1, m)], "dense_gate": [(self.f, m)], "dense_up": [(self.f, m)],
            "dense_down": [(m, self.f)], "dense_gate_up": [(2 * self.f, m)],
            "embed": [(self.vocab, m)], "head": [(self.vocab, m)], "norm": [(m,)],
            "embed_norm": [(m,)],
            **{role: list[Shape]() for role in LATENT},
            "q_norm": [(self.d,), (heads,), (self.h, self.d)], "k_norm": [(self.d,), (keys,), (self.g, self.d)],
            "o_norm": [(heads,)], "mlp_norm": [(self.f,)], "sinks": [(self.h,)],
            "o_gate": [(heads, m), (self.h, m)],
        }.get(role, [(m,)])  # fmt: skip
