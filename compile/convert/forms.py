"""The forms of `convert --to`: the arrays of a rank and their names, the names of its files, and the contents of
config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bringup.adapters.apply.fuse import fused, lay_out, shared_as_experts
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.quantization import without_quantization
from bringup.adapters.trtllm.config_keys import written
from bringup.adapters.trtllm.names import names_of
from bringup.adapters.trtllm.ranks import AS_STORED, rank_of
from bringup.adapters.vllm import ranks as vllm
from bringup.compile.convert.text_model import text_model
from bringup.compile.job import Job
from bringup.diagnostics import fail
from bringup.graphs.core.axes import sizes_of

FORMS = ("graph", "layout", "fused", "trtllm", vllm.NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to write a job's ranks. `plan_of(rank)` has the arrays of a rank by the names in its file."""

    name: str
    parallel: Parallel
    plan_of: Callable[[int], Plan]
    file: str  # the name of a rank's file without its suffix, with {rank}; that of a single rank is `single`
    single: str
    config: Mapping[str, Any]


def form_of(job: Job, name: str, parallel: Parallel, layout: Adapter | None) -> Form:
    """The form of that name; `layout` is the target's, for `layout`. Raises BU140 if a model does not support it."""
    family, config = job.family.name, without_quantization(job.config)  # the arrays are floats
    if name == "trtllm":
        job = text_model(job)
        family = job.family.name
        _check_trtllm(job, parallel)
        parallel = replace(parallel, **AS_STORED)
        return Form(
            name=name, parallel=parallel, file="rank{rank}", single="rank0",
            config=written(job.family, job.graph, job.config, parallel),
            plan_of=lambda rank: rank_of(job.plan, family, parallel, rank),
        )  # fmt: skip
    if name == vllm.NAME:
        vllm.check_family(family)
        whole = vllm.tied(job.plan, job.family.load("adapter")(job.graph.config), job.checkpoint.read)
        parallel, stages = vllm.stored_as(parallel), Stages.of(job.graph)
        return Form(
            name=name, parallel=parallel, config=config,
            file="model-rank-{rank}-part-0", single="model-rank-0-part-0",
            plan_of=lambda rank: vllm.rank_of(whole, parallel, rank, stages),
        )  # fmt: skip
    return Form(
        name=name, parallel=parallel, file="rank{rank}", single="model", config=config,
        plan_of=lambda rank: rank_in_form(job, name, parallel, rank, layout),
    )  # fmt: skip


def _check_trtllm(job: Job, parallel: Parallel) -> None:
    """Raises BU140 for a model or a division that TensorRT-LLM does not have."""
    experts = names_of(job.family.name).experts
    if parallel.vocab_multiple > 1 or (parallel.ep > 1 and not experts):
        help = "leave out --ep and --vocab-multiple"
        message = "the form `trtllm` of a dense model has no expert parallelism, and its own padding"
        raise fail("BU140", message, help=help)
    if parallel.ep > parallel.tp or parallel.experts or parallel.redundant:
        message = "the form `trtllm` has each expert once, divided among the ranks of tensor parallelism"
        raise fail("BU140", message, help="use an --ep that divides --tp, and no --expert-map or --redundant-experts")
    sparse = getattr(job.graph.config, "sparse", ())
    if experts and not all(sparse):
        message = f"the form `trtllm` has experts in every layer, and layer {sparse.index(False)} has none"
        raise fail("BU140", message, help="`--to graph` and `--to layout` support every family")


def rank_in_form(job: Job, name: str, parallel: Parallel, rank: int, layout: Adapter | None) -> Plan:
    """The arrays of a rank in the form `graph`, `layout` (`layout` is the target's) or `fused`.

    `fused`: q, k and v in one matrix, gate and up in one, the projections of a recurrent layer in one, and shared
    experts appended to the routed ones, of which ranks then have their share. Raises the errors of `rank_plan`.
    """
    whole, stages = job.plan, Stages.of(job.graph)
    if name == "fused":
        whole, layout = lay_out(whole, shared_as_experts(_expert_width(whole))), fused()
    plan = rank_plan(whole, parallel, rank, stages)
    return lay_out(plan, layout) if layout and name != "graph" else plan


def _expert_width(plan: Plan) -> int:
    """The channels of one expert, `f` of `experts.up_proj`; 1 without experts, whose rules do not apply."""
    experts = (entry.declared for name, entry in plan.entries.items() if name.endswith(".experts.up_proj"))
    return next((sizes_of(declared.axes)["f"] for declared in experts), 1)
