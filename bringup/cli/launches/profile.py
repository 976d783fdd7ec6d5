"""`--profile FILE`: the launches of a run, as a table and as a Chrome trace."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.diagnostics import fail
from bringup.render.words import size, table

if TYPE_CHECKING:
    from bringup.compile.gpu.profile import Profile
    from bringup.compile.program.program import Executor
    from bringup.render.progress import StageLines


@contextmanager
def profiled(executor: Executor, file: Path | None, lines: StageLines) -> Generator[None]:
    """Profiles the block, if there is a file. Raises BU018 for an executor without measurements."""
    if file is None:
        yield
        return
    from bringup.compile.gpu.executor import GpuExecutor
    from bringup.compile.gpu.profile import chrome_trace
    from bringup.system.atomic import write_file

    if not isinstance(executor, GpuExecutor):
        help = "leave --profile out, or run a bundle of `cuda:…` or `rocm:…` with `--executor gpu` or `emulate`"
        raise fail("BU018", "this executor measures no launches", help=help)
    profile = executor.start_profile()
    yield
    write_file(file, chrome_trace(profile))
    print(_table(profile), file=sys.stderr)
    lines.say("Profiled", f"{len(profile.measured)} launches: {file} is for ui.perfetto.dev or chrome://tracing")


def _table(profile: Profile) -> str:
    """A line for each kind of launch: count, time, the bytes of the schedule, and the counted bytes."""
    from bringup.compile.gpu.profile import totals

    rows = [("entry", "launch", "times", "us", "bytes", "counted", "GB/s")]
    for each in totals(profile):
        counted = "" if each.counted is None else size(each.counted)
        speed = f"{each.nbytes / each.seconds / 1e9:.3g}" if each.seconds else ""
        times, micros = str(each.launches), f"{each.seconds * 1e6:.1f}"
        rows.append((each.entry, each.operation, times, micros, size(each.nbytes), counted, speed))
    return table(rows)
