"""What a LoRA consists of: pairs as its files have them, and low-rank factors of a graph's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.planning.plan import Plan
from bringup.graphs.core.signature import Declared
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

RANK = "rank"  # the axis that A and B share


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the files of a program store A and B: axes of `rank`, `in`, `out`, and `e` where one tensor has experts."""

    a: str = "rank in"
    b: str = "out rank"


PEFT = Layout()
PEFT_EXPERTS = Layout(a="(e rank) in", b="out (rank e)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two factors of one tensor of the base: ΔW = scale · B · A, [out, in].

    `embedding`: A is looked up by token, and `in` is the vocabulary.
    """

    module: str  # as the adapter's files name it
    target: str  # the tensor of the base, by the name that rules use
    a: TensorInfo
    b: TensorInfo
    rank: int
    scale: float
    embedding: bool = False
    layout: Layout = PEFT


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """What a LoRA adds to one parameter: `scale` · b · a, summed over the axis `rank`.

    `a` and `b` name entries of `Lora.plan`. Together they have the parameter's axes: those it sums over are a's
    (`rank in:m`), those of its result b's (`out:(h d) rank`). Axes in front that both have count experts
    (`e rank m`, `e f rank`); where an expert has no factors, and where a row has none, there are zeros. `placed`,
    `given` and `summed` number the parameter's axes: those that both have, those of b, those of a.
    """

    parameter: str
    a: str
    b: str
    rank: int
    scale: float
    placed: tuple[int, ...]
    given: tuple[int, ...]
    summed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A LoRA of a graph. `plan` fills its arrays from the adapter's tensors and is cut for ranks as any plan is.

    So a column-parallel parameter gives a rank its rows of B and all of A, and a row-parallel one its columns of A and
    all of B: `rank_plan(lora.plan, …)`. `sites` has a parameter's factors, which are to be added up.
    """

    plan: Plan
    sites: Mapping[str, tuple[LowRank, ...]] = field(default_factory=dict[str, tuple[LowRank, ...]])

    @property
    def factors(self) -> Iterator[LowRank]:
        for factors in self.sites.values():
            yield from factors

    @property
    def max_rank(self) -> int:
        return max((factor.rank for factor in self.factors), default=0)

    def declared(self, factor: LowRank) -> tuple[Declared, Declared]:
        """The declarations of a and b."""
        return self.plan.entries[factor.a].declared, self.plan.entries[factor.b].declared

    def arrays(self, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
        """Every a and b, by the names that factors have for them."""
        return materialise(self.plan, checkpoint)
