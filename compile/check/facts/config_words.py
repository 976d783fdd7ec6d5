"""The config keys of an axis: the graph is built again, from integers that record their keys."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from bringup.adapters.planning.problems import Problem
from bringup.diagnostics import BringupError
from bringup.graphs.config.tracked import Tracked, tracked
from bringup.graphs.core.axes import AxesError, sizes_of
from bringup.graphs.core.options import build_graph

if TYPE_CHECKING:
    from bringup.compile.job import Job
    from bringup.graphs.core.signature import Signature


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

    def is_consequence(self, problem: Problem) -> bool:
        """Whether a problem of shapes or axes follows from a size that the config lacks."""
        unknown = self.job.unknown
        if not unknown or problem.code not in ("BU102", "BU106") or not problem.parameter:
            return False
        names = sizes_of(self.job.plan.signature[problem.parameter].axes)
        return not unknown.isdisjoint(self.of(problem.parameter, names))
