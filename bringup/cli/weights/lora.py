"""`bringup lora`: checks, converts and merges adapters of a model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from bringup.cli.parameters.options import Named, job_options, open_named
from bringup.cli.parameters.outputs import Output, deliver, output_options, outputs_of
from bringup.cli.parameters.ranks import Ranks, any_ranks, parallel_of, rank_options
from bringup.cli.parameters.sections import SectionedCommand
from bringup.cli.parameters.words import MODEL, OneOf
from bringup.diagnostics import Report, fail
from bringup.grouping import listed

if TYPE_CHECKING:
    from bringup.compile.job import Job

ADAPTER = click.Path()
FOLDER = click.Path(path_type=Path)
TO = ("trtllm", "peft", "ranks")


class Words(Named):
    """All options that are not named below."""

    named: str | None


class Divided(Words, Ranks):
    """The same, with the options of ranks."""


@click.group("lora")
def command() -> None:
    """Check, convert or merge a LoRA of peft, mlx-lm, llama.cpp's converter or Megatron-Bridge."""


def _base_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The adapter, and its base as in other commands; `--model` is an alternative to the argument."""
    function = job_options(function)
    option = click.option("--model", "named", type=MODEL, metavar="MODEL", help="The same as the argument MODEL.")
    return click.argument("lora", metavar="ADAPTER", type=ADAPTER)(option(function))


@command.command("check", cls=SectionedCommand)
@_base_options
@output_options
def check(lora: str, formats: Sequence[Output], output_file: Path | None, **words: Unpack[Words]) -> int:
    """Check that ADAPTER fits MODEL, without reading a tensor. Exits with 1 if there is an error.

    Without MODEL and a checkpoint, the base model is the one that the adapter's config names.
    """
    from bringup.cli.errors.failures import findings_of
    from bringup.compile.lora.check import check_lora

    outputs = outputs_of(formats, output_file)
    try:
        report = check_lora(_base(lora, words, headers_only=True), lora)
    except Exception as error:
        report = Report(lora, findings_of(error))
    deliver(report, outputs)
    return report.exit_code


@command.command("merge", cls=SectionedCommand, short_help="Write the base model's checkpoint with ADAPTER merged.")
@_base_options
@click.option("-o", "--out", type=FOLDER, required=True, metavar="DIR", help="Output folder.")
@click.option("--force", is_flag=True, help="Replace a folder that an earlier merge wrote.")
def merge(lora: str, out: Path, force: bool, **words: Unpack[Words]) -> None:
    """Write the base model's checkpoint with ADAPTER added to its weights, in the same layout."""
    from bringup.compile.convert.convert import check_output
    from bringup.compile.lora.export import merge_lora
    from bringup.compile.lora.opening import load_lora
    from bringup.render.progress import StageLines

    check_output(out, force=force)
    job = _base(lora, words)
    done = merge_lora(job, load_lora(job, lora), out, force=force, progress=StageLines())
    print(f"wrote {done.folder}: {', '.join(done.files)}", file=sys.stderr)


@command.command("convert", cls=SectionedCommand, short_help="Write ADAPTER for TensorRT-LLM, for peft or for ranks.")
@_base_options
@click.option("--to", type=OneOf(TO), default="trtllm", show_default=True, help="The form to write; see above.")
@click.option(
    "--storage-type",
    type=OneOf(("float16", "bfloat16", "float32")),
    default="float16",
    show_default=True,
    help="Dtype of the factors.",
)
@click.option(
    "--format",
    "form",
    type=OneOf(("safetensors", "numpy")),
    default="safetensors",
    show_default=True,
    help="File format of the two tensors of --to trtllm.",
)
@rank_options
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only this rank; default: all of them.")
@click.option("-o", "--out", type=FOLDER, required=True, metavar="DIR", help="Output folder.")
@click.option("--force", is_flag=True, help="Replace a folder that an earlier convert wrote.")
def convert(
    lora: str, to: str, storage_type: str, form: str, rank: int | None, out: Path, force: bool, **words: Unpack[Divided]
) -> None:
    """Write ADAPTER as LoraWeights and LoraConfig of a TensorRT-LLM request, as peft's files, or for each rank.

    \b
    --to trtllm  LoraWeights and LoraConfig, for the complete model: the ranks of
                 TensorRT-LLM select their parts of them
    --to peft    peft's files, from LoraWeights and LoraConfig
    --to ranks   rankN.safetensors: the parts of A and B that each rank holds

    Modules of cross attention, which no graph of bringup has, are converted by name to --to trtllm, without a proof
    that they fit.
    """
    from bringup.compile.convert.convert import check_output
    from bringup.compile.lora.convert import convert_lora, restore_lora

    if to == "ranks" and form == "numpy":
        raise fail("BU023", "--format numpy applies to --to trtllm", help="leave it out: ranks are safetensors files")
    if to != "ranks" and (any_ranks(words) or rank is not None):
        raise fail("BU023", f"--to {to} is not divided among ranks", help="add --to ranks, or leave the ranks out")
    check_output(out, force=force)
    job = _base(lora, words, headers_only=True)
    if to == "ranks":
        from bringup.compile.lora.ranks import convert_lora_ranks

        parallel = parallel_of(words)
        files = convert_lora_ranks(job, lora, out, parallel=parallel, rank=rank, dtype=storage_type, force=force)
        print(f"wrote {out}: {', '.join(files)}", file=sys.stderr)
        return
    if to == "peft":
        count = restore_lora(job, lora, out, force=force)
        print(f"wrote {out}: {count} modules", file=sys.stderr)
        return
    cross = convert_lora(job, lora, out, dtype=storage_type, form=form, force=force)
    if cross:
        print(f"note: converted by name alone: {listed(cross)}; no graph has cross attention", file=sys.stderr)
    print(f"wrote {out}", file=sys.stderr)


def _base(lora: str, words: Words, *, headers_only: bool = False) -> Job:
    """The job of the base: the named one, or that of the adapter's config."""
    model, named = words["model"], words["named"]
    if model and named:
        raise fail("BU023", "the model is named twice", help="leave --model out")
    words["model"] = model or named
    if not words["model"] and not words["checkpoint"]:
        from bringup.adapters.lora.files import open_lora

        base = open_lora(lora).base
        if not base:
            help = "name it: MODEL, or --checkpoint SRC"
            raise fail("BU023", f"`{lora}` does not name its base model", help=help)
        words["checkpoint"] = base if Path(base).exists() or ":" in base else f"hf://{base}"
    job = open_named(words, headers_only=headers_only)
    if job.notice:
        print(f"note: {job.notice}", file=sys.stderr)
    return job
