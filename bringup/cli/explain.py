"""`bringup explain`: a code, a parameter or a tensor, told at length."""

from __future__ import annotations

import re
from typing import Unpack

import click

from bringup.cli.options import Named, job_options, open_named
from bringup.codes import page, titles
from bringup.diagnostics import did_you_mean, fail
from bringup.render.words import table


@click.command("explain")
@click.argument("subject", metavar="CODE|PARAMETER|TENSOR")
@job_options
def command(subject: str, **named: Unpack[Named]) -> None:
    """Explain a code (BU102), how a PARAMETER of MODEL is made, or what becomes of a checkpoint's TENSOR."""
    text = page(subject)
    if text:
        print(text, end="")
        return
    if re.fullmatch(r"(?i)BU\d+", subject) or not (named["model"] or named["checkpoint"]):
        codes = titles()
        hint = did_you_mean(subject.upper(), codes) or did_you_mean(subject.lower(), codes.values())
        other = f"for a parameter or a tensor, name the model too: bringup explain {subject} MODEL"
        raise fail("BU010", f"there is no code `{subject}`", help=hint or other)
    from bringup.compile.explain import explain

    told = explain(open_named(named), subject)
    print("\n\n".join(f"{part.title}\n{table([('', *row) for row in part.rows])}" for part in told))
