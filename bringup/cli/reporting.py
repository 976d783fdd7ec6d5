"""`--report FILE.html`: an HTML page about a command, written when it ends, with or without an error."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bringup.cli.parameters.words import REPORT
from bringup.diagnostics import BringupError
from bringup.progress import Progress

if TYPE_CHECKING:
    from bringup.compile.job import Job
    from bringup.compile.parity.parity import Parity
    from bringup.compile.report.record import Recorder

Command = Callable[..., Any]


def report_option(command: Command) -> Command:
    """The option of every command that has a report."""
    help = "Also write an HTML page: stages, memory, modules, the source of each parameter."
    return click.option("--report", type=REPORT, metavar="FILE.html", help=help)(command)


@dataclass(slots=True)
class Reporting:
    """The result of a command for its report; `progress` is passed to the work."""

    progress: Progress
    result: str = "planned"
    bundle: Path | None = None
    parity: Parity | None = None


@contextmanager
def reporting(
    path: Path | None, job: Job | None, target: str, max_seq_len: int | None,
    target_options: Mapping[str, str] | None = None, max_batch_size: int = 1, cache_blocks: int | None = None,
) -> Generator[Reporting]:  # fmt: skip
    """Writes the page for the block, also if that ends in a BringupError; without a path, nothing."""
    from bringup.render.progress import StageLines

    if path is None or job is None:
        yield Reporting(StageLines())
        return
    from bringup.compile.report.record import Recorder

    recorder = Recorder(StageLines())
    outcome = Reporting(recorder)
    settings = {"target": target, "target_options": target_options, "max_batch_size": max_batch_size}
    settings["cache_blocks"] = cache_blocks
    try:
        yield outcome
    except BringupError as error:
        outcome.result = "failed"
        _write(path, job, settings, max_seq_len, recorder, outcome, error)
        raise
    _write(path, job, settings, max_seq_len, recorder, outcome)


def _write(
    path: Path, job: Job, settings: Mapping[str, Any], max_seq_len: int | None, recorder: Recorder, outcome: Reporting,
    error: BringupError | None = None,
) -> None:  # fmt: skip
    from bringup.compile.report.record import record_of
    from bringup.render.html.page import page
    from bringup.render.write import write_whole

    record = record_of(
        job,
        recorder,
        command=shlex.join(["bringup", *sys.argv[1:]]),
        date=datetime.now(UTC),
        **settings,
        max_seq_len=max_seq_len or (outcome.parity.tokens if outcome.parity else None),
        result=outcome.result,
        error=error,
        bundle=outcome.bundle,
        parity=outcome.parity,
    )
    write_whole(path, page(record))
    print(f"report: {path}", file=sys.stderr)
