"""The config keys of an axis: the graph is built again, from integers that record their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bringup.adapters.planning.plan import Plan
from bringup.adapters.planning.problems import Problem
from bringup.diagnostics import BringupError
from bringup.graphs.config.tracked import Tracked, tracked
from bringup.graphs.core.axes import AxesError, sizes_of
from bringup.graphs.core.options import build_graph

if TYPE_CHECKING:
    from bringup.compile.job import Job
    from bringup.graphs.core.signature import Signature


class Count(NamedTuple):
    """A key with the number of layers or experts, and its value: `text`. `needed` is the value for the checkpoint."""

    text: str
    needed: int


def last_number(plan: Plan, parent: str) -> int:
    """The last number below a name among the tensors that rules read; -1 without one."""
    steps = (name[len(parent) + 1 :].partition(".")[0] for name in plan.required if name.startswith(f"{parent}."))
    return max((int(step) for step in steps if step.isdigit()), default=-1)


def paths_of(config: Mapping[str, Any], value: int) -> Iterator[tuple[str, ...]]:
    """The keys with an integer, at the top of a config and in its objects."""
    for key, each in config.items():
        if type(each) is int and each == value:
            yield (key,)
        elif isinstance(each, Mapping):
            yield from ((key, *path) for path in paths_of(cast("Mapping[str, Any]", each), value))


def _changed(config: Mapping[str, Any], path: tuple[str, ...], value: int) -> dict[str, Any]:
    key, *rest = path
    return {**config, key: _changed(config[key], tuple(rest), value) if rest else value}


class ConfigWords:
    """The config keys of the axes of a job's parameters, computed on first use."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @cached_property
    def signature(self) -> Signature | None:
        """The graph's signature with tracked sizes; None if the graph was not built from a config.json."""
        job = self.job
        if not job.config or not hasattr(job.family.load("config"), "read"):
            return None
        try:
            settings, _ = job.family.load("config").read(tracked(job.config), job.allow)
            return build_graph(job.family.load("graph"), settings, job.graph.dtype, job.graph.options).signature()
        except (BringupError, AxesError):
            return None

    def of(self, parameter: str, axes: Iterable[str]) -> tuple[str, ...]:
        """The keys that determine these axes of a parameter; () for constant sizes."""
        declared = self.signature.get(parameter) if self.signature else None
        sizes = sizes_of(declared.axes) if declared else {}
        found = (sizes.get(axis) for axis in axes)
        return tuple(dict.fromkeys(key for size in found if isinstance(size, Tracked) for key in size.keys))

    def count(self, parent: str, stated: int, present: int) -> Count | None:
        """The key with the value `stated` that determines how many numbered names below `parent` the rules read.

        That is the key whose change to `present` changes the plan to so many; None if there is no such key.
        """
        from bringup.compile.job import replanned

        job = self.job
        for path in paths_of(job.config, stated):
            try:
                plan = replanned(job, _changed(job.config, path, present)).plan
            except (BringupError, AxesError):
                continue
            if last_number(plan, parent) == present - 1:
                return self._count_at(path, stated, present)
        return None

    def _count_at(self, path: tuple[str, ...], stated: int, present: int) -> Count:
        places, key = self.job.places, ".".join(path)
        name, file, more = places.names.get(key, key), places.of(path[0]), ""
        gguf = self.job.checkpoint.gguf
        value = gguf.values.get(name.partition(".")[2]) if gguf else None
        drafts = value - stated if isinstance(value, int) else 0
        if drafts:  # GGUF counts the layers of drafts too
            more = f", {stated} without the layers of drafts"
        return Count(f"`{name}` of {file} is {stated + drafts}{more}", present + drafts)

    def is_consequence(self, problem: Problem) -> bool:
        """Whether a problem of shapes or axes follows from a size that the config lacks."""
        unknown = self.job.unknown
        if not unknown or problem.code not in ("BU102", "BU106") or not problem.parameter:
            return False
        names = sizes_of(self.job.plan.signature[problem.parameter].axes)
        return not unknown.isdisjoint(self.of(problem.parameter, names))
