"""Slots for LoRAs in the graph of a job: how many, of which rank, for which modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike

from bringup.adapters.lora.factors import Lora
from bringup.compile.job import Job
from bringup.compile.lora.opening import load_lora
from bringup.graphs.core.options import build_graph


def with_slots(
    job: Job,
    like: Sequence[str | PathLike[str]] = (),
    *,
    rank: int | None = None,
    modules: Sequence[str] = (),
    count: int = 1,
) -> Job:
    """The job, whose graph has `count` slots for LoRAs of up to `rank` for these modules.

    LoRAs in the folders `like` say the rank and the modules that are not given; every linear layer where none says.
    Raises BU024 for modules that the graph does not have, and what is wrong with the folders.
    """
    loras = [_opened(job, path) for path in like]
    rank = rank or max((need for lora in loras for need in _ranks(lora)), default=1)
    names = tuple(modules) or tuple(sorted({name for lora in loras for name in _modules(lora)}))
    chosen = {"max_lora_rank": rank, "max_loras": count, **({"lora_target_modules": names} if names else {})}
    options = replace(job.graph.options, **chosen)
    return replace(job, graph=build_graph(job.family.load("graph"), job.graph.config, job.graph.dtype, options))


def _opened(job: Job, path: str | PathLike[str]) -> Lora:
    loaded = load_lora(job, path)
    loaded.raise_if_errors()
    return loaded.lora


def _ranks(lora: Lora) -> Iterator[int]:
    """What each parameter's factors take of a slot, those that are added up one behind the other."""
    return (sum(factor.rank for factor in factors) for factors in lora.sites.values())


def _modules(lora: Lora) -> Iterator[str]:
    """The last part of each module's name: `model.layers.0.self_attn.q_proj.weight` is of `q_proj`."""
    return (name.split(".")[-2] for name in lora.sites)
