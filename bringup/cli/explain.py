"""`bringup explain`: a code, a page of the documentation, a parameter or a tensor."""

from __future__ import annotations

import re
from typing import Unpack

import click

from bringup.cli.parameters.options import Named, job_options, open_named
from bringup.cli.parameters.ranks import Ranks, any_ranks, parallel_of, rank_options
from bringup.cli.parameters.sections import SectionedCommand
from bringup.cli.parameters.words import CODE
from bringup.codes import page, titles
from bringup.diagnostics import did_you_mean, fail
from bringup.guides import guide, names
from bringup.render.visible import visible
from bringup.render.words import table

LOOK_ALIKE = str.maketrans("OIL", "011")


class Words(Named, Ranks):
    """All options that are not named below."""


@click.command("explain", cls=SectionedCommand)
@click.argument("subject", type=CODE, metavar="CODE|PAGE|PARAMETER|TENSOR")
@job_options
@rank_options
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only this rank; default: all of them.")
def command(subject: str, rank: int | None, **named: Unpack[Words]) -> None:
    """Explain a code (BU102), how a PARAMETER of MODEL is computed, or how a checkpoint's TENSOR is used. Of a
    module, list the parameters.

    A PAGE of the documentation is printed: adding-a-model, architecture, ci, coming-from, cpu-performance, daily-use,
    faults, faults-quantised, fidelity, formats, kernels, lora, lora-faults, quantisation, schedule-and-kernels, serve,
    support, targets, verify, weights.

    Bytes are printed as FILE[FIRST:END]. With any option under Ranks, also what each rank holds and reads.
    """
    of_model = bool(named["model"] or named["checkpoint"])
    text, code = page(subject) or (None if of_model else guide(subject)), subject.upper().translate(LOOK_ALIKE)
    if text:
        print(text, end="")
        return
    if re.fullmatch(r"BU\w{3}", code) or not of_model:
        codes = titles()
        near = [*codes, *codes.values(), *names()]
        hint = f"did you mean `{code}`?" if code in codes else did_you_mean(subject, near)
        other = f"for a parameter or a tensor, name the model too: bringup explain {subject} MODEL"
        raise fail("BU010", f"unknown code `{subject}`", help=hint or other)
    from bringup.compile.report.explain import explain

    parallel = parallel_of(named) if any_ranks(named) else None
    parts = explain(open_named(named, headers_only=True), subject, parallel, rank)
    tables = [(part.title, [("", *map(visible, row)) for row in part.rows]) for part in parts]
    print("\n\n".join(f"{visible(title)}\n{table(rows)}" for title, rows in tables))
