"""The rows of cos and sin for the positions of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bringup.graphs.config.rope import RopeConfig
from bringup.graphs.core.module import Const, Module, Param

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from bringup.graphs.core.step import Step


class Rope(Module):
    """cos and sin, float32 [N, (d + 1) // 2] each, of position · frequency: rows of a table."""

    def __init__(self, config: RopeConfig, d: int) -> None:
        super().__init__()

        def angles(positions: int) -> np.ndarray:
            return _angles(positions, config.frequencies(d))

        pairs = (d + 1) // 2
        self.cos = Const("position pair", _table("cos", angles, config.attention_factor), pair=pairs)
        self.sin = Const("position pair", _table("sin", angles, config.attention_factor), pair=pairs)

    def forward(self, step: Step) -> tuple[Tensor, Tensor]:
        return self.cos[step.positions], self.sin[step.positions]


class LongRope(Module):
    """As `Rope`, from one of two tables: for sequences up to the trained length, and for longer ones.

    Keys rotated with one table do not match queries rotated with the other, so a sequence that exceeds the first is
    recomputed, as transformers 5.23 does (`Phi3ForCausalLM.prepare_inputs_for_generation`).
    """

    def __init__(self, config: RopeConfig, d: int) -> None:
        super().__init__()
        self.recompute_past = self.longest_short = config.max_positions

        def angles(positions: int) -> np.ndarray:
            import numpy as np

            sets = (config.short_factor, config.long_factor)
            return np.stack([_angles(positions, config.frequencies(d, factors=factors)) for factors in sets])

        pairs = (d + 1) // 2
        self.cos = Const("long position pair", _table("cos", angles, config.attention_factor), long=2, pair=pairs)
        self.sin = Const("long position pair", _table("sin", angles, config.attention_factor), long=2, pair=pairs)

    def forward(self, step: Step) -> tuple[Tensor, Tensor]:
        import torch

        long = (step.per_token(step.totals) > self.longest_short)[:, None]
        positions = step.positions
        return (
            torch.where(long, self.cos[1][positions], self.cos[0][positions]),
            torch.where(long, self.sin[1][positions], self.sin[0][positions]),
        )


class DynamicRope(Module):
    """As `Rope`, with a theta that grows with the sequence once it is longer than the training context.

    theta · (factor · length / trained - (factor - 1))^(d / (d - 2)): "NTK-aware" scaling, as in transformers 5.23
    (`_compute_dynamic_ntk_parameters`).
    """

    def __init__(self, config: RopeConfig, d: int) -> None:
        super().__init__()
        self.theta, self.factor, self.trained, self.d = config.theta, config.factor, config.max_positions, d
        self.varies_past = self.trained

    def forward(self, step: Step) -> tuple[Tensor, Tensor]:
        import torch

        lengths = step.per_token(step.totals).clamp(min=self.trained).float()
        alpha = self.factor * lengths / self.trained - (self.factor - 1)
        theta_N1 = (self.theta * alpha ** (self.d / (self.d - 2)))[:, None]
        exponents = torch.arange(0, self.d, 2).float() / self.d
        angles = step.positions[:, None].float() / theta_N1**exponents
        return torch.cos(angles), torch.sin(angles)


class LearnedRope(Module):
    """As `Rope`, with frequencies that are multiplied by e^alpha, a learned number for each pair of channels."""

    def __init__(self, config: RopeConfig, d: int) -> None:
        super().__init__()
        pairs, self.factor = (d + 1) // 2, config.attention_factor
        self.alpha = Param("pair", pair=pairs, dtype="float32")
        self.frequencies = Const("pair", lambda positions: config.frequencies(d), pair=pairs)

    def forward(self, step: Step) -> tuple[Tensor, Tensor]:
        import torch

        angles = step.positions[:, None].float() * (self.frequencies * self.alpha.exp())
        return torch.cos(angles) * self.factor, torch.sin(angles) * self.factor


def rope_rows(config: RopeConfig, head_dim: int) -> Module:
    """The module that computes (cos, sin), float32 [N, pairs] each, of a step, for a config and its heads."""
    kinds = {"dynamic": DynamicRope, "longrope": LongRope}
    return kinds.get(config.kind, Rope)(config, config.channels(head_dim))


def _angles(positions: int, frequencies: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.arange(positions, dtype=np.float32)[:, None] * frequencies[None]


def _table(function: str, angles: Callable[[int], np.ndarray], factor: float) -> Callable[[int], np.ndarray]:
    def table(positions: int) -> np.ndarray:
        import numpy as np

        return getattr(np, function)(angles(positions)) * np.float32(factor)

    return table
