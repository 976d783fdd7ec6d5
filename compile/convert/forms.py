"""The forms of `convert --to`: the arrays of a rank and their names, the names of its files, and the contents of
config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bringup.adapters.algebra.expr import S, cat
from bringup.adapters.apply.fuse import fused, lay_out
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Plan
from bringup.adapters.trtllm.names import names_of
from bringup.adapters.trtllm.ranks import rank_of
from bringup.adapters.trtllm.words import written
from bringup.compile.job import Job
from bringup.diagnostics import fail
from bringup.graphs.core.signature import Signature

FORMS = ("graph", "layout", "trtllm", "sharded_state")
# Families whose parameters vLLM names as `_vllm` does (vllm/model_executor/models: gpt2.py, llama.py, mixtral.py,
# phi3.py, qwen2.py, qwen3.py).
SHARDED_STATE = frozenset({"gpt2", "llama", "mixtral", "phi3", "qwen2", "qwen3"})
VLLM_VOCABULARY = 64  # DEFAULT_VOCAB_PADDING_SIZE of vllm/model_executor/layers/vocab_parallel_embedding.py


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
    family = job.family.name
    if name == "trtllm":
        names_of(family)
        if parallel.ep > 1 or parallel.vocab_multiple > 1:
            help = "leave out --ep and --vocab-multiple"
            message = "the form `trtllm` of a dense model has no expert parallelism, and its own padding"
            raise fail("BU140", message, help=help)
        parallel = replace(parallel, bias="every", vocab="head")
        return Form(
            name=name, parallel=parallel, file="rank{rank}", single="rank0",
            config=written(job.family, job.graph, job.config, parallel),
            plan_of=lambda rank: rank_of(job.plan, family, parallel, rank),
        )  # fmt: skip
    if name == "sharded_state":
        if family not in SHARDED_STATE:
            raise _no_form(name, family, SHARDED_STATE)
        parallel = replace(parallel, bias="every", vocab_multiple=max(parallel.vocab_multiple, VLLM_VOCABULARY))
        return Form(
            name=name, parallel=parallel, config=job.config,
            file="model-rank-{rank}-part-0", single="model-rank-0-part-0",
            plan_of=lambda rank: _stored_once(_rank(job, parallel, rank, _vllm())),
        )  # fmt: skip
    return Form(
        name=name, parallel=parallel, file="rank{rank}", single="model", config=job.config,
        plan_of=lambda rank: _rank(job, parallel, rank, layout if name == "layout" else None),
    )  # fmt: skip


def stages_of(job: Job) -> Stages:
    """The path of the layers of the job's graph, and their number."""
    return Stages(job.graph.layer_path, len(job.graph.layers))


def _rank(job: Job, parallel: Parallel, rank: int, layout: Adapter | None) -> Plan:
    plan = rank_plan(job.plan, parallel, rank, stages_of(job))
    return lay_out(plan, layout) if layout else plan


def _vllm() -> Adapter:
    """vLLM's names: q, k and v fused, gate and up fused; also those of the experts of FusedMoE."""
    table, moe = fused(), "{p:**}.block_sparse_moe"
    gate_up = (S(f"{{p}}.mlp.experts.{x}_proj") for x in ("gate", "up"))
    table[f"{moe}.experts.w13_weight"] = cat(*gate_up, axis="f")
    table[f"{moe}.experts.w2_weight"] = S("{p}.mlp.experts.down_proj")
    table[f"{moe}.gate.weight"] = S("{p}.mlp.gate.weight")
    return table


def _stored_once(plan: Plan) -> Plan:
    """Of parameters that share memory only the one with the smallest name, as in vLLM's ShardedStateLoader."""
    groups: dict[str, set[str]] = {}
    for later, first in plan.aliases().items():
        groups.setdefault(first, {first}).add(later)
    left_out = {name for names in groups.values() for name in names - {min(names)}}
    entries = {name: entry for name, entry in plan.entries.items() if name not in left_out}
    return replace(plan, entries=entries, signature=Signature({n: e.declared for n, e in entries.items()}))


def _no_form(name: str, family: str, known: frozenset[str]) -> Exception:
    help = f"{', '.join(sorted(known))} support it; `--to graph` and `--to layout` support every family"
    return fail("BU140", f"the form `{name}` is not defined for `{family}`", help=help)
