"""The stages and findings of a compile or a verification, recorded for a report."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.compile.bundle.folder import versions
from bringup.compile.check.checker import check_job as check
from bringup.compile.estimate.sizes import Sizes, dry_run
from bringup.compile.job import Job
from bringup.compile.program.export_options import DEFAULT_CONTEXT
from bringup.compile.targets.selection import select
from bringup.diagnostics import BringupError, Diagnostic
from bringup.progress import Progress, Stage

if TYPE_CHECKING:
    from bringup.compile.parity.parity import Parity


@dataclass(slots=True)
class StageResult:
    """A stage that forwards and records its calls. `start` and `seconds` count from the recorder's start."""

    name: str
    start: float
    onward: Stage
    seconds: float = 0.0
    result: str = ""
    failed: bool = False

    def done(self, text: str) -> None:
        self.result = text
        self.onward.done(text)

    def advance(self, fraction: float) -> None:
        self.onward.advance(fraction)


class Recorder:
    """A Progress that forwards everything to another and records it."""

    def __init__(self, onward: Progress) -> None:
        self.onward = onward
        self.stages: list[StageResult] = []
        self.warnings: list[Diagnostic] = []
        self._start = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Generator[Stage]:
        with self.onward.stage(name) as onward:
            result = StageResult(name, self.elapsed(), onward)
            self.stages.append(result)
            try:
                yield result
            except BaseException:
                result.failed = True
                raise
            finally:
                result.seconds = self.elapsed() - result.start

    def warn(self, finding: Diagnostic) -> None:
        self.warnings.append(finding)
        self.onward.warn(finding)

    def elapsed(self) -> float:
        """Seconds since the recorder was created."""
        return time.perf_counter() - self._start


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The data of a report.

    `files` are a bundle's, in bytes; `sizes` is None if the checkpoint does not fit; `parity` is set if logits were
    compared with a reference.
    """

    job: Job
    command: str
    date: datetime
    target: str
    result: str
    ok: bool
    seconds: float
    context: int
    stages: Sequence[StageResult] = ()
    findings: Sequence[Diagnostic] = ()
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    sizes: Sizes | None = None
    bundle: Path | None = None
    files: Mapping[str, int] = field(default_factory=dict[str, int])
    parity: Parity | None = None


def record_of(
    job: Job,
    recorder: Recorder,
    *,
    command: str,
    date: datetime,
    target: str,
    max_seq_len: int | None,
    result: str,
    target_options: Mapping[str, str] | None = None,
    max_batch_size: int = 1,
    cache_blocks: int | None = None,
    error: BringupError | None = None,
    bundle: Path | None = None,
    parity: Parity | None = None,
) -> Record:
    """The record of a finished job: `error` is the one that ended it, None if it succeeded."""
    report = check(job)
    findings = [
        *report.findings,
        *recorder.warnings,
        *(error.findings if error else ()),
        *(parity.findings if parity else ()),
    ]
    try:
        sizes = dry_run(job, target, max_seq_len, max_batch_size, target_options, cache_blocks=cache_blocks)
    except BringupError:  # it is among the findings
        sizes = None
    files = sorted(path for path in bundle.rglob("*") if path.is_file()) if bundle else []
    return Record(
        job=job,
        command=command,
        date=date,
        target=_target_name(target, known=sizes is not None),
        result=result,
        ok=error is None and report.ok and (parity is None or parity.ok),
        seconds=recorder.elapsed(),
        context=sizes.context if sizes else min(job.graph.config.max_positions, DEFAULT_CONTEXT),
        stages=recorder.stages,
        findings=list(dict.fromkeys(findings)),
        counts=report.counts,
        versions=dict(versions()),
        sizes=sizes,
        bundle=bundle,
        files={str(path.relative_to(bundle)): path.stat().st_size for path in files} if bundle else {},
        parity=parity,
    )


def _target_name(target: str, *, known: bool) -> str:
    """A target's name as the user wrote it, with the full name if that is an alias: `cpu (iree-cpu)`."""
    full = select(target).name if known else target
    return target if full == target else f"{target} ({full})"
