"""A model without parameters whose logits are the cos and sin of the angles by which its positions are rotated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bringup.compile.program.step_inputs import sequence_step
from bringup.diagnostics import BringupError, Severity
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.rope import RopeConfig
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Module
from bringup.graphs.core.step import CacheSizes, Step
from bringup.graphs.core.to_torch import to_torch
from bringup.graphs.layers.rotary import rope_rows


@dataclass(frozen=True)
class AnglesConfig:
    family: ClassVar[str] = "angles"

    vocab_size: int
    max_positions: int


class Rows(Module):
    def forward(self, x_ND: Tensor, cos: Tensor, sin: Tensor, step: Step) -> Tensor:
        return torch.cat((cos, sin), dim=1)


class Angles(Graph):
    layer_path = "rows"

    def __init__(self, rope: RopeConfig, head_dim: int, positions: int) -> None:
        super().__init__(AnglesConfig(rope.channels(head_dim), positions), "float32")
        self.rotary = rope_rows(rope, head_dim)
        self.rows = [Rows()]

    def prologue(self, step: Step) -> tuple[Tensor, ...]:
        zeros = step.tokens.float()[:, None].expand(-1, self.config.vocab_size)
        return (zeros, *self.rotary(step))

    def epilogue(self, x_Rm: Tensor) -> Tensor:
        return x_Rm


def read_rope(raw: dict[str, Any], head_dim: int, *, partial: float | None = None) -> RopeConfig:
    """As a family reads it. Raises BringupError."""
    fields = Fields(raw, "angles")
    rope = RopeConfig.from_hf(fields, head_dim, fields.size("max_position_embeddings"), partial=partial)
    found = fields.done()
    if any(finding.severity is Severity.ERROR for finding in found):
        raise BringupError(*found)
    return rope


def rows(rope: RopeConfig, head_dim: int, first: int, count: int, total: int) -> np.ndarray:
    """cos and sin, float32 [count, channels], of a step of a sequence of `total`; by torch, without compiling."""
    module: Any = to_torch(Angles(rope, head_dim, total), "float32", CacheSizes(context=total))
    step = sequence_step([0] * count, first, count, total, total)
    _, cos, sin = module.prologue(Step(**{name: torch.from_numpy(array) for name, array in step.items()}))
    return torch.cat((cos, sin), dim=1).numpy()
