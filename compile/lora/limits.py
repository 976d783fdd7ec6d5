"""Slots for LoRAs in the graph of a job: their number, rank and modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from os import PathLike

from bringup.adapters.lora.factors import Lora
from bringup.adapters.trtllm.lora_modules import IDS, module_id
from bringup.compile.job import Job
from bringup.compile.lora.opening import load_lora
from bringup.graphs.core.lora import lora_modules, module_of
from bringup.graphs.core.options import build_graph


def with_slots(
    job: Job,
    like: Sequence[str | PathLike[str]] = (),
    *,
    rank: int | None = None,
    modules: Sequence[str] = (),
    count: int = 1,
) -> Job:
    """The job with a graph that has `count` slots for LoRAs of up to `rank` for these modules.

    A module is named as in PEFT's `target_modules`, or by TensorRT-LLM, such as `attn_q`. The LoRAs in the folders
    `like` determine the rank and the modules that are not passed; the default is every linear layer. Raises BU024 for
    modules that the graph does not have, and the errors of the folders.
    """
    loras = [_opened(job, path) for path in like]
    rank = rank or max((need for lora in loras for need in _ranks(lora)), default=1)
    names = tuple(_of_graph(job, modules)) or tuple(sorted({name for lora in loras for name in _modules(lora)}))
    options = replace(job.graph.options, max_lora_rank=rank, max_loras=count)
    if names:
        options = replace(options, lora_target_modules=names)
    return replace(job, graph=build_graph(job.family.load("graph"), job.graph.config, job.graph.dtype, options))


def _opened(job: Job, path: str | PathLike[str]) -> Lora:
    loaded = load_lora(job, path)
    loaded.refuse_if_merged_only()
    return loaded.lora


def _ranks(lora: Lora) -> Iterator[int]:
    """The rank that each parameter's factors need in a slot; ranks of factors that are summed are added."""
    return (sum(factor.rank for factor in factors) for factors in lora.sites.values())


def _modules(lora: Lora) -> Iterator[str]:
    """The last part of each module's name: `model.layers.0.self_attn.q_proj.weight` is of `q_proj`."""
    return (module_of(name).rpartition(".")[2] for name in lora.sites)


def _of_graph(job: Job, names: Iterable[str]) -> Iterator[str]:
    """TensorRT-LLM's names as the graph's, a fused q, k and v as three if the graph has them separately; other names
    unchanged."""
    paths = {path: module.lora_parameters for layer in job.graph.layers for path, module in lora_modules(layer)}
    for name in names:
        parts = {name, *(("attn_q", "attn_k", "attn_v") if name == "attn_qkv" else ())}
        numbers = {IDS[part] for part in parts if part in IDS}
        found = [path for path, own in paths.items() if numbers & {module_id(f"{path}.{each}") for each in own}]
        yield from found or [name]
