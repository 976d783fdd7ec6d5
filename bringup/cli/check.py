"""`bringup check`: does the checkpoint fit the graph? Reads headers; with --values the weights as well."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import click

from bringup.cli.parameters.options import Named, job_options, open_named
from bringup.cli.parameters.outputs import TEXTS, Output, deliver, output_options, outputs_of
from bringup.cli.parameters.ranks import Ranks, any_ranks, parallel_of, rank_options
from bringup.cli.parameters.sections import SectionedCommand
from bringup.diagnostics import Report
from bringup.system import gc_pause


class Words(Named, Ranks):
    """All options that are not named below."""


@click.command("check", cls=SectionedCommand)
@job_options
@rank_options
@click.option("--values", is_flag=True, help="Also read the weights: broken ties, NaN, infinity, matrices of zeros.")
@click.option("--fix", is_flag=True, help="Correct names and axes in the adapter's file if the fix is certain.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, without changing it.")
@click.option("--watch", is_flag=True, help="Repeat the check whenever a file that it read changes.")
@output_options
@gc_pause.gc_paused()
def command(
    values: bool, fix: bool, diff: bool, watch: bool, formats: Sequence[Output],
    output_file: Path | None, **named: Unpack[Words],
) -> int:  # fmt: skip
    """Check that a checkpoint fits MODEL's graph, without torch and, except for --values, without reading weights.

    MODEL is a name (`bringup models`) or a Python file; it may be omitted if the checkpoint names its architecture.
    Exits with 1 if there is an error.

    With any option under Ranks, also prints the bytes of each rank's weights, and the bytes that
    `bringup convert --rank R` reads.
    """
    if watch:
        from bringup.cli.watch import watch as watch_files

        words = [word for word in sys.argv[1:] if word != "--watch"]
        watch_files(words, [named["model"], named["checkpoint"], named["config"], named["adapter"]])
    outputs = outputs_of(formats, output_file)
    try:
        report = _checked(named, values=values)
        if fix or diff:
            from bringup.cli.fix import repair

            stream = sys.stdout if outputs[0].format in TEXTS else sys.stderr
            if repair(report, stream, write=not diff):
                report = _checked(named, values=values)
    except Exception as error:
        from bringup.cli.errors.failures import findings_of

        report = Report(named["model"] or "", findings_of(error))
    deliver(report, outputs)
    return report.exit_code


def _checked(named: Words, *, values: bool) -> Report:
    from bringup.compile.check.checker import check_job

    job = open_named(named, headers_only=not values)
    if job.notice:
        print(f"note: {job.notice}", file=sys.stderr)
    report = check_job(job)
    if not report.ok:
        from bringup.compile.fix.search import add_fixes

        add_fixes(job, report)
    if values and report.ok:
        from bringup.compile.check.values import value_findings

        report.findings += value_findings(job)
    elif values:
        print("note: values were not read; correct what the headers show first", file=sys.stderr)
    if any_ranks(named):
        from bringup.adapters.apply.rank_plan import Stages
        from bringup.compile.check.ranks import divide
        from bringup.compile.packed_job import packed_shares

        parallel = parallel_of(named)
        shares = divide(job.plan, parallel, Stages.of(job.graph))
        report.findings += shares.refusals
        report.bytes_per_rank, report.read_bytes_per_rank = shares.nbytes, shares.read
        report.stored_bytes_per_rank = packed_shares(job, parallel) if report.ok else []
        report.dtype = job.graph.dtype
    return report
