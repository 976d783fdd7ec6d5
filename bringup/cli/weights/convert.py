"""`bringup convert`: a checkpoint's weights for the graph, for a target or for each rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Unpack

import click

from bringup.arguments import FLOAT_DTYPES
from bringup.cli.parameters.options import Named, job_options, open_named
from bringup.cli.parameters.ranks import Ranks, parallel_of, rank_options
from bringup.cli.parameters.sections import SectionedCommand
from bringup.cli.parameters.targets import TARGET
from bringup.cli.parameters.words import OneOf

FOLDER = click.Path(path_type=Path)
TO = ("graph", "layout", "fused", "trtllm", "sharded_state")


UNUSABLE = ("also", "adapter", "config", "allow_config")  # if files are copied


class Words(Named, Ranks):
    """All options that are not named below."""


@click.command("convert", cls=SectionedCommand)
@job_options
@click.option("--to", type=OneOf(TO), default="graph", show_default=True, help="The form to write; see above.")
@click.option("--target", type=TARGET, default="cpu", show_default=True, metavar="T", help="The target of --to layout.")
@click.option("--dtype", type=OneOf(FLOAT_DTYPES), default="auto", show_default=True, help="Dtype of the parameters.")
@rank_options
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only this rank; default: all of them.")
@click.option(
    "--format",
    "form",
    type=OneOf(["safetensors", "npz"]),
    default="safetensors",
    show_default=True,
    help="File format.",
)
@click.option("--layered", is_flag=True, help="Read and write layer by layer instead of in the order of the files.")
@click.option("-o", "--out", type=FOLDER, required=True, metavar="DIR", help="Output folder.")
@click.option("--force", is_flag=True, help="Replace a folder that an earlier convert wrote.")
def command(
    to: str, target: str, rank: int | None, form: str, layered: bool, out: Path, force: bool,
    **words: Unpack[Words],
) -> None:  # fmt: skip
    """Write MODEL's weights as named arrays, for one process or for each rank of a group.

    \b
    --to graph          the graph's parameters, by name, in their declared shape
    --to layout         the physical buffers of --target
    --to fused          q, k and v in one matrix, gate and up in one, those of a
                        recurrent layer in one, and shared experts appended to
                        the routed ones
    --to trtllm         TensorRT-LLM's checkpoint: rankN.safetensors and config.json
    --to sharded_state  what vLLM and SGLang load with --load-format sharded_state

    The folder also contains config.json, and bringup.json, which describes how the model is divided among ranks. A
    checkpoint that is already such a folder, divided in the same way, is copied. Folders of the forms trtllm and
    sharded_state can be converted to another form or division. Run the command again to resume an interrupted
    conversion.
    """
    from bringup.compile.convert.convert import check_output, convert
    from bringup.compile.convert.presharded import copy_presharded, presharded
    from bringup.render.progress import StageLines

    check_output(out, force=force)
    parallel, progress = parallel_of(words), StageLines()
    found = presharded(words["checkpoint"])
    if found and found.is_copied(to, parallel):
        done = copy_presharded(
            found,
            out,
            to=to,
            target=target,
            parallel=parallel,
            rank=rank,
            form=form,
            dtype=words.get("dtype", "auto"),
            unusable=[f"--{name.replace('_', '-')}" for name in UNUSABLE if words[name]],
            force=force,
            progress=progress,
        )
    else:
        job = open_named(words)
        if job.notice:
            print(f"note: {job.notice}", file=sys.stderr)
        done = convert(
            job,
            out,
            to=to,
            target=target,
            parallel=parallel,
            rank=rank,
            form=form,
            layered=layered,
            force=force,
            progress=progress,
        )
    print(f"wrote {done.folder}: {', '.join(done.files)}", file=sys.stderr)
