"""The data of a LoRA: pairs as in its files, and low-rank factors of a graph's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.planning.plan import Plan
from bringup.diagnostics import fail
from bringup.graphs.core.signature import Declared
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

RANK = "rank"  # the axis that A and B share


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The axes of A and B in a program's files: `rank`, `in`, `out`, and `e` if one tensor has several experts."""

    a: str = "rank in"
    b: str = "out rank"


PEFT = Layout()
PEFT_EXPERTS = Layout(a="(e rank) in", b="out (rank e)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two factors of one tensor of the base: ΔW = scale · B · A, [out, in].

    `embedding`: A is looked up by token, and `in` is the vocabulary. With a `magnitude` [out], each row of W + ΔW is
    scaled to its magnitude: DoRA (arXiv 2402.09353, equation 5).
    """

    module: str  # its name in the adapter's files
    target: str  # the tensor of the base, by its name in rules
    a: TensorInfo
    b: TensorInfo
    rank: int
    scale: float
    embedding: bool = False
    layout: Layout = PEFT
    magnitude: TensorInfo | None = None

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.a, self.b) if self.magnitude is None else (self.a, self.b, self.magnitude)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """The LoRA of one parameter: `scale` · b · a, summed over the axis `rank`.

    `a` and `b` are names of entries of `Lora.plan`. Together they have the parameter's axes: those that it sums over
    are a's (`rank in:m`), those of its result b's (`out:(h d) rank`). Leading axes of both count experts (`e rank m`,
    `e f rank`); experts and rows without factors have zeros. `placed`, `given` and `summed` are indices of the
    parameter's axes: those in both, those in b, those in a. `magnitude` names an entry with the axes of `placed` and
    `given`, "" without DoRA; rows that no tensor fills have no magnitude.
    """

    parameter: str
    a: str
    b: str
    rank: int
    scale: float
    placed: tuple[int, ...]
    given: tuple[int, ...]
    summed: tuple[int, ...]
    magnitude: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A LoRA of a graph. `plan` fills its arrays from the adapter's tensors and can be divided among ranks like any
    plan.

    A rank has its rows of B and all of A for a column-parallel parameter, and its columns of A and all of B for a
    row-parallel one: `rank_plan(lora.plan, …)`. `sites` has each parameter's factors, whose products are summed.
    """

    plan: Plan
    sites: Mapping[str, tuple[LowRank, ...]] = field(default_factory=dict[str, tuple[LowRank, ...]])

    @property
    def factors(self) -> Iterator[LowRank]:
        for factors in self.sites.values():
            yield from factors

    def declared(self, factor: LowRank) -> tuple[Declared, Declared]:
        """The declarations of a and b."""
        return self.plan.entries[factor.a].declared, self.plan.entries[factor.b].declared

    def arrays(self, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
        """Every a and b, float32, by their names in the factors."""
        return materialise(self.plan, checkpoint)


def scaled(b: np.ndarray, scale: float) -> np.ndarray:
    """B multiplied by its scale, float32: what a program without a scale uses. Products out of range are infinite;
    see `narrowed`."""
    import numpy as np

    with np.errstate(over="ignore"):
        return b.astype(np.float32) * np.float32(scale)


def narrowed(array: np.ndarray, dtype: str, what: str) -> np.ndarray:
    """A float32 array in `dtype`. Raises BU174, with `what` as the subject, for values out of the range of either."""
    import numpy as np

    from bringup.adapters.checkpoints.arrays import numpy_dtype

    with np.errstate(over="ignore"):
        found = array.astype(numpy_dtype(dtype))
    if np.isfinite(found).all():
        return found
    if np.isfinite(array).all():
        message = f"{what} has {np.abs(array).max():,.5g}, which is out of the range of {dtype}"
        raise fail("BU174", message, help="use another dtype: --storage-type bfloat16")
    help = "multiply A and divide B by a power of 2 in the adapter's file: their product is the same"
    raise fail("BU174", f"B of {what}, multiplied by its scale, is out of the range of float32", help=help)
