"""The text model inside a model of images, as a model of its own: other programs load it separately."""

from __future__ import annotations

from dataclasses import replace

from bringup.adapters.planning.plan import Entry
from bringup.compile.job import Job
from bringup.graphs.core.signature import Signature
from bringup.graphs.registry import FAMILIES


def text_model(job: Job) -> Job:
    """The job of the text model, with its family, its config and its names of parameters; any other job itself."""
    found = job.graph.text_model(job.config)
    if found is None:
        return job
    family = next(each for each in FAMILIES if each.name == found.graph.config.family)
    entries: dict[str, Entry] = {}
    for name, entry in job.plan.entries.items():
        own = found.alone + name.removeprefix(found.inside) if name.startswith(found.inside) else name
        entries[own] = replace(entry, declared=replace(entry.declared, name=own))
    plan = replace(job.plan, entries=entries, signature=Signature({n: e.declared for n, e in entries.items()}))
    return replace(job, family=family, graph=found.graph, plan=plan, config=found.config)
