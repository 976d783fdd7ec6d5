"""Ties that a checkpoint contradicts."""

from __future__ import annotations

from bringup.adapters.apply.materialise import check_ties
from bringup.compile.job import Job
from bringup.diagnostics import Diagnostic, Severity


def tie_warnings(job: Job) -> list[Diagnostic]:
    """Warnings for parameters that the config ties and the checkpoint has separately, with other values."""
    return [
        Diagnostic(
            code="BU114",
            severity=Severity.WARNING,
            message=f"the config ties `{name}`, and the checkpoint stores other values for it; those are used",
            help="if the model was trained untied, set tie_word_embeddings to false",
            parameter=name,
        )
        for name in check_ties(job.plan, job.checkpoint)
    ]
