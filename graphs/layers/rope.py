"""Rotary position tables: cos and sin of position · frequency, for the rope types that graphs name in their configs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bringup.graphs.config import Fields
from bringup.graphs.module import Const, Module
from bringup.shown import short, shown

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions become angles. `kind` is `default`, `linear` or `llama3`."""

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    @classmethod
    def from_hf(cls, fields: Fields) -> RopeConfig:
        """Reads `rope_theta` with `rope_scaling` (up to transformers 4) or `rope_parameters` (from 5 on)."""
        older, newer = fields.group("rope_scaling"), fields.group("rope_parameters")
        raw = older or newer  # the order of transformers' `convert_rope_params_to_dict`
        inner = Fields(raw, f"{fields.family} rope")
        theta = inner.take("rope_theta", float, fields.take("rope_theta", float, 10000.0))
        kind = inner.take("rope_type", str, inner.take("type", str, "default"))
        if inner.findings:  # theta or the type is a stand-in
            made = cls()
            inner.read |= raw.keys()
        elif kind == "default":
            made = cls(theta=theta)
        elif kind == "linear":
            made = cls(kind, theta, inner.take("factor", float))
        elif kind == "llama3":
            made = cls(
                kind,
                theta,
                inner.take("factor", float),
                inner.take("low_freq_factor", float),
                inner.take("high_freq_factor", float),
                inner.size("original_max_position_embeddings"),
            )
        else:
            made = cls()
            inner.read |= raw.keys()  # its settings belong to a type that is refused as a whole
            inner.error(
                "BU122",
                f"config says rope type `{short(kind)}`; the {fields.family} graph implements `default`, `linear`, "
                "`llama3`",
                "rope_type",
                "add the type to graphs/layers/rope.py; angles of another type would be wrong at every position",
            )
        if made.factor <= 0 or theta <= 0:
            inner.error("BU121", f"rope theta {theta:g} and factor {made.factor:g} have to be above 0", "rope_theta")
        inner.read |= {"original_max_position_embeddings"} if kind != "llama3" else set()
        if made.high_freq_factor <= made.low_freq_factor:
            inner.error("BU121", "rope's `high_freq_factor` has to be above its `low_freq_factor`", "high_freq_factor")
        if unknown := [key for key in raw if key not in inner.read]:
            said = ", ".join(f"`{short(key)}` = {shown(raw[key])}" for key in unknown[:5])
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            inner.error("BU120", f"rope of type `{kind}` has no setting {said}{more}", unknown[0])
        fields.findings += inner.findings
        return made

    def frequencies(self, d: int) -> np.ndarray:
        """Radians per position of each channel pair, float32[d / 2].

        theta^(-2i/d) (Su et al. 2021); `linear` divides by the factor (Chen et al. 2023, position interpolation);
        `llama3` divides low frequencies, keeps high ones and blends between (meta-llama/llama-models
        `apply_scaling`, also transformers `modeling_rope_utils._compute_llama3_parameters`).
        """
        import numpy as np

        exponent = np.arange(0, d, 2, dtype=np.int64).astype(np.float32) / np.float32(d)
        freq = np.float32(1.0) / np.power(np.float32(self.theta), exponent, dtype=np.float32)
        if self.kind == "linear":
            return freq / np.float32(self.factor)
        if self.kind == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            turns = self.original_max_positions * freq.astype(np.float64) / (2 * math.pi)
            keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
            return (freq * (keep + (1 - keep) / self.factor)).astype(np.float32)
        return freq


class Rope(Module):
    """The rows of cos and sin for a step's positions: float32 [N, d / 2] each."""

    def __init__(self, config: RopeConfig, d: int) -> None:
        super().__init__()

        def angles(positions: int) -> np.ndarray:
            import numpy as np

            return np.arange(positions, dtype=np.float32)[:, None] * config.frequencies(d)[None]

        def cos(positions: int) -> np.ndarray:
            import numpy as np

            return np.cos(angles(positions))

        def sin(positions: int) -> np.ndarray:
            import numpy as np

            return np.sin(angles(positions))

        self.cos = Const("position pair", cos, pair=d // 2)
        self.sin = Const("position pair", sin, pair=d // 2)

    def forward(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos[positions_N], self.sin[positions_N]
