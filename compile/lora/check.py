"""The proof that an adapter fits a model, from headers alone."""

from __future__ import annotations

import os
import time

from bringup.compile.job import Job
from bringup.compile.lora.opening import load_lora
from bringup.diagnostics import BringupError, Report


def check_lora(job: Job, path: str | os.PathLike[str]) -> Report:
    """Every finding on an adapter of the job's model, those that `load_lora` returns or raises.

    The counts are of the parameters that it changes, and of its tensors: those that are read, and copies of the base's
    own, which are dropped. Findings on the model's own checkpoint are not included.
    """
    began = time.perf_counter()
    report = Report(f"{os.fspath(path)} on {job.family.name}")
    try:
        loaded = load_lora(job, path)
    except BringupError as error:
        report.findings += error.findings
        return report
    report.findings += loaded.findings or filter(None, [loaded.merged_only()])
    tensors = loaded.files.checkpoint.headers
    read = {info.name for info in (*loaded.lora.plan.headers.values(), *(own.info for own in loaded.trained.values()))}
    changed = {*loaded.lora.sites}.union(*map(loaded.base.parameters_of, loaded.trained))
    report.counts = {
        "parameters": len(changed),
        "tensors": len(tensors),
        "consumed": len(read),
        "dropped": len(loaded.copies),
    }
    report.parameters = tuple(name for name in loaded.base.parameters if name in changed)
    report.seconds = time.perf_counter() - began
    return report
