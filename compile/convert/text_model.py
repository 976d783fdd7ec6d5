"""The text model of a LLaVA as a model of its own: other programs load it separately from the vision tower."""

from __future__ import annotations

from dataclasses import replace

from bringup.adapters.planning.plan import Entry
from bringup.compile.job import Job
from bringup.graphs.core.signature import Signature
from bringup.graphs.llava import LlavaConfig, text_config
from bringup.graphs.registry import FAMILIES

INSIDE, ALONE = "model.language_model.", "model."


def text_model(job: Job) -> Job:
    """The job of the text model, with its family, its config and its names of parameters; any other job itself."""
    settings = job.graph.config
    if not isinstance(settings, LlavaConfig):
        return job
    family = next(each for each in FAMILIES if each.name == settings.block.family)
    entries: dict[str, Entry] = {}
    for name, entry in job.plan.entries.items():
        own = name.replace(INSIDE, ALONE, 1) if name.startswith(INSIDE) else name
        entries[own] = replace(entry, declared=replace(entry.declared, name=own))
    plan = replace(job.plan, entries=entries, signature=Signature({n: e.declared for n, e in entries.items()}))
    graph = family.load("graph")(settings.block, job.graph.dtype)
    return replace(job, family=family, graph=graph, plan=plan, config=text_config(job.config))
