"""`bringup kernels`: tests of the kernels of a bundle, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bringup.cli.parameters.outputs import text_or_json
from bringup.cli.parameters.words import BUNDLE
from bringup.render.json_text import json_text
from bringup.render.words import plural, table

if TYPE_CHECKING:
    from bringup.compile.gpu.trial.trial import Row


@click.group("kernels")
def command() -> None:
    """Test the kernels of a bundle on the CPU."""


@command.command("test", short_help="Run the kernels of BUNDLE in an emulator, and check them.")
@click.argument("bundle", type=BUNDLE)
@click.option(
    "--entry",
    "entries",
    multiple=True,
    metavar="NAME",
    help="Test this entry point, such as decode (repeatable); default: all.",
)
@text_or_json
def test(bundle: Path, entries: Sequence[str], form: str) -> None:
    """Run each kernel of BUNDLE in an emulator, and compare it with the reference. Exits with 1 on a finding.

    Checks addresses, data races and uninitialised reads in shared memory, the order between thread blocks, asynchronous
    copies executed as late and as early as possible, thread blocks and warps in another order, and the results. Counts
    bytes and sectors.
    """
    from bringup.compile.runtime.kernel_trial import trial_of
    from bringup.render.progress import StageLines

    lines = StageLines()
    with lines.stage("Testing kernels"):
        rows = trial_of(bundle, lambda name: lines.draw("Testing", f"kernels of {name}"), entries)
    if form == "json":
        print(json_text({"launches": [_facts(row) for row in rows]}), end="")
    else:
        print(table([_HEADS, *map(_line, rows)]))
        for line in _findings(rows):
            print(line)
    found = sum(len(row.seen.findings) for row in rows)
    if form == "text":
        print(f"{plural(len(rows), 'launch', 'launches')}, {plural(found, 'finding')}")
    if found:
        raise click.exceptions.Exit(1)


_HEADS = (
    "entry",
    "kernel",
    "operations",
    "launches",
    "read",
    "schedule",
    "written",
    "schedule",
    "sectors",
    "of minimum",
    "error",
    "",
)


def _line(row: Row) -> tuple[str, ...]:
    """Bytes that the kernels read and wrote, next to those of the schedule; sectors for each request; the error."""
    cost, seen = row.cost, row.seen
    wanted = cost.weights + cost.cache + cost.other
    return (
        row.entry, row.kernels, row.group, str(row.launches), f"{seen.read:,}", f"{wanted:,}", f"{seen.written:,}",
        f"{cost.written:,}", f"{seen.sectors:.2f}", f"{seen.excess:.2f}", f"{row.error:.0e}",
        plural(len(seen.findings), "finding") if seen.findings else "",
    )  # fmt: skip


def _findings(rows: Sequence[Row]) -> Iterator[str]:
    """Each finding under its launch; equal ones once."""
    for row in rows:
        if row.seen.findings:
            yield f"\n{row.entry}: {row.kernels} ({row.group})"
            yield from (f"  {finding}" for finding in dict.fromkeys(row.seen.findings))


def _facts(row: Row) -> dict[str, object]:
    cost, seen = row.cost, row.seen
    return {
        "entry": row.entry,
        "kernel": row.kernels,
        "operations": row.group,
        "launches": row.launches,
        "read": seen.read,
        "read_of_schedule": cost.weights + cost.cache + cost.other,
        "written": seen.written,
        "written_of_schedule": cost.written,
        "sectors_per_request": seen.sectors,
        "sector_excess": seen.excess,
        "instructions": seen.instructions,
        "error": row.error,
        "findings": seen.findings,
    }
