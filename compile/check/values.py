"""Errors that only the values of tensors show: broken ties, NaN, zeros, and values that a format does not allow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bringup.adapters.apply.left_out import wrongly_left_out
from bringup.adapters.apply.materialise import fill
from bringup.adapters.checkpoints.arrays import release_pages
from bringup.adapters.planning.plan import Entry
from bringup.compile.check.quantisation.parts import part_warnings
from bringup.compile.check.ties import tie_warnings
from bringup.compile.check.value_stats import Soundness
from bringup.diagnostics import BringupError, Diagnostic
from bringup.grouping import grouped
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from bringup.compile.job import Job

OF_VALUES = ("BU115", "BU116")  # errors of computing a parameter


def value_findings(job: Job) -> list[Diagnostic]:
    """All checks of values that a compile does, without one: each parameter is read once.

    Needs the memory of one parameter and its sources, or, for ties, of two. If the function of a rule fails or
    rejects a tensor, that is among the findings (BU116, BU115). Raises BU2xx if a file cannot be read.
    """
    found = [
        *tie_warnings(job),
        *part_warnings(job),
        *wrongly_left_out(job.plan, job.checkpoint.loaded),
    ]
    refused: dict[tuple[str, str], tuple[Diagnostic, list[str]]] = {}
    sound, aliases = Soundness(), job.plan.aliases()
    entries = {name: entry for name, entry in job.plan.entries.items() if name not in aliases}
    for name, entry in entries.items():
        try:
            array = read_parameter(job, entry)
        except BringupError as error:
            if any(finding.code not in OF_VALUES for finding in error.findings):
                raise
            for finding in error.findings:
                refused.setdefault((finding.code, finding.message), (finding, []))[1].append(name)
            continue
        sound.look(entry, array)
        release_pages(array)
    job.checkpoint.refuse_changed()
    found += (
        finding if finding.parameter else replace(finding, parameter=", ".join(grouped(names)))
        for finding, names in refused.values()
    )
    return [*found, *sound.findings(job.plan)]


def read_parameter(job: Job, entry: Entry) -> np.ndarray:
    """A parameter's array; the memory of its sources is released unless it is the array's."""
    sources: list[np.ndarray] = []

    def read(info: TensorInfo) -> np.ndarray:
        sources.append(job.checkpoint.loaded(info))
        return sources[-1]

    array = fill(entry, read)
    for source in sources:
        if source.ctypes.data != array.ctypes.data:  # otherwise it is the array
            release_pages(source)
    return array
