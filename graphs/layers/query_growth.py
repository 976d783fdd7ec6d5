"""Queries that grow with the logarithm of their position: scores of long contexts then stay as far apart as those of
short ones.

N tokens of the step · H heads · d channels of a head
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.graphs.core.module import Module, Param
from bringup.graphs.ops.rotary import query_growth

if TYPE_CHECKING:
    from torch import Tensor

    from bringup.graphs.core.step import Step


class QueryGrowth(Module):
    """The same growth for all heads, with the factor and the period of `query_growth`."""

    def __init__(self, factor: float, period: int) -> None:
        super().__init__()
        self.factor, self.period = factor, period

    def forward(self, q_NHd: Tensor, step: Step) -> Tensor:
        return q_NHd * query_growth(step.positions, self.factor, self.period).to(q_NHd.dtype)


class LearnedGrowth(Module):
    """q · (scale · log(position + 1) + offset), with a learned scale and offset of each head (Nakanishi 2025, arXiv
    2501.19399). `axis` is the name of the heads' axis. Computed in float32.
    """

    def __init__(self, axis: str, heads: int) -> None:
        super().__init__()
        self.scale = Param(axis, {axis: heads})
        self.offset = Param(axis, {axis: heads})

    def forward(self, q_NHd: Tensor, step: Step) -> Tensor:
        log_N1 = (step.positions + 1).float().log()[:, None]
        growth_NH = log_N1 * self.scale.float() + self.offset.float()
        return (q_NHd.float() * growth_NH[..., None]).to(q_NHd.dtype)
