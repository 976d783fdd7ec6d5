"""`bringup.adapt`: a job's arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import check_axes
from bringup.arguments import choice, integer, integer_list
from bringup.compile.check.checker import check_job
from bringup.compile.convert.forms import rank_in_form
from bringup.compile.job import Job, as_job
from bringup.compile.targets.selection import select

if TYPE_CHECKING:
    import numpy as np


def adapt(
    job: Job,
    *,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    rank: int = 0,
    to: str = "graph",
    target: str = "cpu",
    stage_layers: Sequence[int] = (),
    vocab_multiple: int = 1,
    experts: Sequence[Sequence[int]] = (),
    redundant: int = 0,
    copy: bool = False,
) -> dict[str, np.ndarray]:
    """Every parameter that `rank` holds, by exact name, in its declared shape and dtype.

    Arrays are C-contiguous, writable and share no memory that a write would show; they are numpy's, so that
    `torch.from_dlpack` and others use them without a copy (bfloat16 and float8 of ml_dtypes: by `array.view`). Bytes
    that no rule moves are mapped from the checkpoint's file, copy on write; `copy` gives every array its own memory.

    Ranks are numbered as `bringup.adapters.Parallel` describes; `to` is `graph`, `layout` for the physical buffers
    of `target`, or `fused` (see `convert`). `experts` has the logical expert of each physical one, a row for every
    layer or one for all. Raises BringupError with the findings of `check`, BU045, BU130 and BU138 if ranks do not
    fit.
    """
    job, to = as_job(job), choice("to", to, ("graph", "layout", "fused"))
    parallel = Parallel(
        tp=integer("tp", tp), ep=integer("ep", ep), pp=integer("pp", pp),
        stage_layers=tuple(integer_list("stage_layers", stage_layers)),
        vocab_multiple=integer("vocab_multiple", vocab_multiple),
        experts=tuple(tuple(integer_list("experts", row)) for row in experts),
        redundant=integer("redundant", redundant),
    )  # fmt: skip
    check_job(job).raise_if_errors()
    check_axes(job.plan, parallel)
    layout = select(target).target.layout(job.graph) if to == "layout" else None
    plan = rank_in_form(job, to, parallel, integer("rank", rank), layout)
    return materialise(plan, job.checkpoint, copy=copy)
