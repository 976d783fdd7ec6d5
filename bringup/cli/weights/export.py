"""`bringup export`: weights in their published layout."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import click

from bringup.arguments import FLOAT_DTYPES
from bringup.cli.bundles import refuse_options_of_bundle
from bringup.cli.parameters.options import Named, job_options, open_named, quantize_option, revised
from bringup.cli.parameters.sections import SectionedCommand
from bringup.cli.parameters.words import CHECKPOINT, OneOf


@click.command("export", cls=SectionedCommand)
@job_options
@click.option("--dtype", type=OneOf(FLOAT_DTYPES), default="auto", show_default=True, help="Dtype of the parameters.")
@quantize_option
@click.option(
    "--with-dropped", type=CHECKPOINT, metavar="SRC", help="Copy the tensors that the adapter drops from this source."
)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Output folder.")
@click.option("--force", is_flag=True, help="Replace a folder that an earlier export wrote.")
def command(with_dropped: str | None, out: Path, force: bool, **named: Unpack[Named]) -> None:
    """Write the weights of MODEL, or of a bundle, in the layout of their original checkpoint.

    Tensors that the model reads have their original bytes; files, their order and their metadata are those of the
    checkpoint. If the checkpoint of a bundle has moved, name it with --checkpoint: only its headers are read. If
    rules round values or have no inverse, the command fails and lists them.

    With --quantize, and for a bundle that was compiled with it, matrices are written as codes and scales in a published
    format: int8, int4, mxfp4 and fp8 with a scale for each row in that of compressed-tensors, nf4 in that of
    bitsandbytes, fp8 in blocks in that of DeepSeek.
    """
    from bringup.adapters.sources.open_checkpoint import open_checkpoint
    from bringup.compile.bundle.folder import bundle_of
    from bringup.compile.convert.convert import check_output
    from bringup.compile.convert.export import export, export_bundle
    from bringup.render.progress import StageLines

    check_output(out, force=force)
    bundle = bundle_of(named["model"]) if named["model"] else None
    progress, dropped = StageLines(), open_checkpoint(with_dropped) if with_dropped else None
    if bundle is not None:
        refuse_options_of_bundle(bundle, named, {"--also": named["also"]})
        source = revised(None, named["checkpoint"], named["revision"])
        done, note = export_bundle(bundle, out, checkpoint=source, with_dropped=dropped, force=force, progress=progress)
    else:
        job = open_named(named)
        done, note = export(job, out, with_dropped=dropped, force=force, progress=progress), job.notice
    if note:
        print(f"note: {note}", file=sys.stderr)
    for line in _omitted(done.left_out):
        print(line, file=sys.stderr)
    print(f"wrote {done.folder}: {', '.join(done.files)}", file=sys.stderr)


def _omitted(left_out: Mapping[str, str]) -> list[str]:
    """One line for each reason."""
    from bringup.grouping import grouped

    reasons: dict[str, list[str]] = {}
    for name, why in left_out.items():
        reasons.setdefault(why, []).append(name)
    return [f"left out: {', '.join(grouped(names))} ({why})" for why, names in reasons.items()]
