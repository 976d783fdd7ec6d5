"""The tensors of each of TensorRT-LLM's ranks from a graph's parameters, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bringup.adapters.apply.fuse import lay_out
from bringup.adapters.apply.gather import gathered, itself
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages, rank_plan
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Plan
from bringup.adapters.trtllm.names import layout, names_of
from bringup.graphs.core.signature import Signature
from bringup.spec import TensorInfo

LAYERS = Stages("transformer.layers")
# How a division is stored: biases are added after the sum, the embedding is complete on every rank, and groups of
# complete experts are the ranks with the same remainder (`moe_ep_rank` of tensorrt_llm/mapping.py).
AS_STORED: dict[str, Any] = {"bias": "every", "vocab": "head", "expert_groups": "strided"}


def rank_of(plan: Plan, family: str, parallel: Parallel, rank: int) -> Plan:
    """The contents of a rank's file, from the plan of all parameters: layers are numbered from 0 in each stage.

    Raises BU140 for a family without TensorRT-LLM names, and the errors of `rank_plan`.
    """
    stages = _stages(plan, family)
    cut = lay_out(rank_plan(plan, parallel, rank, stages), layout(family))
    first = parallel.stages(stages.count)[parallel.rank(rank).stage].start if parallel.pp > 1 else 0

    def new(name: str) -> str:
        layer = LAYERS.layer(name)
        if layer is None:
            return name
        return name.replace(f"{LAYERS.path}.{layer}.", f"{LAYERS.path}.{layer - first}.", 1)

    entries = {new(name): entry for name, entry in cut.entries.items()}
    router = f".{names_of(family).router}.weight"
    for name, entry in entries.items():
        dtype = "float32" if name.endswith(router) else entry.declared.dtype
        entries[name] = replace(entry, declared=replace(entry.declared, name=name, dtype=dtype))
    return replace(cut, entries=entries, signature=Signature({n: e.declared for n, e in entries.items()}))


def reading(family: str, words: Mapping[str, Any]) -> Adapter:
    """The adapter for files of ranks: the inverse of `rank_of` for each parameter.

    `words` is TensorRT-LLM's config.json. The rules follow from a graph's parameters and the files' headers.
    """
    adapter = Adapter(f"{family} of TensorRT-LLM")
    adapter.trace = partial(_read, family, words)
    return adapter


def _read(
    family: str, words: Mapping[str, Any], own: Adapter, signature: Signature, headers: Mapping[str, TensorInfo]
) -> Adapter:
    whole = itself(signature)
    parallel = _divided(words, headers, _stages(whole, family).count)
    held = {f"rank{rank}.": rank_of(whole, family, parallel, rank) for rank in range(parallel.size)}
    return gathered(own, signature, held)


def _divided(words: Mapping[str, Any], headers: Mapping[str, TensorInfo], layers: int) -> Parallel:
    """The division of a model with this many layers: from `mapping` in config.json, and the layers in the files of each
    stage if these are all there."""
    tp, pp = (words["mapping"].get(size, 1) for size in ("tp_size", "pp_size"))
    vocab = "both" if words.get("use_parallel_embedding") else "head"
    parallel = Parallel(tp=tp, ep=words["mapping"].get("moe_ep_size", 1), pp=pp, **AS_STORED)
    parallel = replace(parallel, vocab=vocab)
    stored: dict[int, set[int]] = {stage: set() for stage in range(pp)}
    for name in headers:
        rank, _, rest = name.partition(".")
        stage, layer = int(rank.removeprefix("rank")) // tp, LAYERS.layer(rest)
        if layer is not None and stage in stored:  # the reader reports a surplus file
            stored[stage].add(layer)
    counts = tuple(map(len, stored.values()))
    return replace(parallel, stage_layers=counts) if pp > 1 and min(counts) and sum(counts) == layers else parallel


def _stages(plan: Plan, family: str) -> Stages:
    """The path of the layers of a family's graph, and their number."""
    stages = Stages(names_of(family).path)
    layers = [layer for name in plan.signature if (layer := stages.layer(name)) is not None]
    return replace(stages, count=max(layers, default=-1) + 1)
