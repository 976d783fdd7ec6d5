"""`bringup check`: does the checkpoint fit the graph? Reads headers only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Unpack

import click

from bringup.cli.options import Named, job_options, open_named
from bringup.diagnostics import BringupError, Report
from bringup.render.terminal import Paint

if TYPE_CHECKING:
    from bringup.cli.ranks import Shares

FORMATS = ("full", "concise", "json")


@click.command("check")
@job_options
@click.option("--tp", type=click.IntRange(1), metavar="N", help="Also divide it among N tensor-parallel ranks.")
@click.option("--format", "style", type=click.Choice(FORMATS), default="full", show_default=True)
def command(style: str, tp: int | None, **named: Unpack[Named]) -> int:
    """Prove that a checkpoint fits MODEL's graph, without reading weights and without torch.

    MODEL is a name (`bringup models`), a Python file, or left out when the checkpoint names its architecture.
    """
    try:
        report, shares = _checked(named, tp)
    except BringupError as error:
        report, shares = Report(named["model"] or "", list(error.findings)), None
    _show(report, shares, style)
    return 0 if report.ok else BringupError(*report.errors).exit_code


def _checked(named: Named, tp: int | None) -> tuple[Report, Shares | None]:
    from bringup.compile.pipeline import check

    job = open_named(named)
    if job.notice:
        print(f"note: {job.notice}", file=sys.stderr)
    report = check(job)
    if tp is None:
        return report, None
    from bringup.cli.ranks import divide

    shares = divide(job.plan, tp)
    report.findings += shares.refusals
    return report, shares


def _show(report: Report, shares: Shares | None, style: str) -> None:
    if style == "json":
        from bringup.render.json import as_json

        more = {"bytes_per_rank": shares.nbytes} if shares else {}
        print(as_json(report, **more))
        return
    from bringup.render.report import report_text

    print(report_text(report, Paint.of(sys.stdout), style))
    if shares and shares.nbytes:
        print(shares.told())
