"""`bringup compile`: from a checkpoint to a bundle that runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import click

from bringup.arguments import FLOAT_DTYPES
from bringup.cli.bundles import bundle_name, next_step
from bringup.cli.parameters.loras import lora_options, with_loras
from bringup.cli.parameters.options import (
    Named,
    activations_option,
    cache_dtype_option,
    job_options,
    open_named,
    quantize_option,
    weights_option,
)
from bringup.cli.parameters.sections import SectionedCommand
from bringup.cli.parameters.targets import PHASE, TARGET, target_options
from bringup.cli.parameters.words import NEW_FOLDER, OneOf
from bringup.cli.reporting import report_option, reporting
from bringup.graphs.core.step import BLOCK
from bringup.render.words import table

FOLDER = click.Path(path_type=Path)


@click.command("compile", cls=SectionedCommand)
@job_options
@click.option(
    "--target",
    type=TARGET,
    default="cpu",
    show_default=True,
    metavar="T",
    help="What to compile for (`bringup targets`).",
)
@target_options
@click.option(
    "--dtype", type=OneOf(FLOAT_DTYPES), default="auto", show_default=True, help="Dtype that the model computes in."
)
@cache_dtype_option
@weights_option
@quantize_option
@activations_option
@click.option(
    "--max-seq-len", type=click.IntRange(1), metavar="N",
    help="Longest context, in tokens; default: the model's, but at most 2048.",
)  # fmt: skip
@click.option(
    "--max-batch-size", type=click.IntRange(1), default=1, show_default=True, metavar="B", help="Sequences at a time."
)
@click.option("--max-input-len", type=click.IntRange(1), metavar="N", help="Longest prompt; default: the context.")
@click.option(
    "--cache-blocks",
    type=click.IntRange(1),
    metavar="N",
    help=f"Cache blocks of {BLOCK} tokens that all sequences share; default: enough for B of the longest.",
)
@lora_options
@click.option("--tokenizer", type=click.Path(), metavar="PATH", help="A tokenizer.json, or its folder, to use instead.")
@click.option(
    "--aux-hidden",
    type=int,
    multiple=True,
    metavar="I",
    help="Also output the hidden state that enters layer I (repeatable).",
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(1),
    metavar="K",
    help="Check up to K tokens of a draft in one step (`--draft`); prompts are slower: each token has logits.",
)
@click.option(
    "-o", "--out", type=FOLDER, metavar="DIR", help="Output folder, or the file of --emit; default: MODEL.bundle."
)
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
@click.option(
    "--emit",
    type=PHASE,
    default="bundle",
    metavar="PHASE",
    help="Write an intermediate form and stop: graph and plan (to stdout without --out), program, or a phase of the "
    "target.",
)
@click.option("--dump-dir", type=NEW_FOLDER, metavar="DIR", help="Write the text of every phase to DIR.")
@click.option("--dry-run", is_flag=True, help="Print sizes only.")
@report_option
def command(
    target: str, target_option: Mapping[str, str], weights: str | None, max_seq_len: int | None, max_batch_size: int,
    cache_blocks: int | None, max_input_len: int | None, aux_hidden: tuple[int, ...], draft_tokens: int | None,
    out: Path | None, force: bool, emit: str, dump_dir: Path | None, dry_run: bool, report: Path | None,
    max_lora_rank: int | None, lora_target_modules: tuple[str, ...], max_loras: int | None, lora_dir: tuple[str, ...],
    **named: Unpack[Named],
) -> None:  # fmt: skip
    """Compile MODEL and its weights to a bundle that `bringup run` executes."""
    from bringup.compile.targets.selection import select

    out = out or _default(emit, named)
    if out and not dry_run:
        from bringup.compile.emit import check_outputs

        check_outputs(out, is_bundle=emit == "bundle")
    select(target, target_option)  # errors of options come before a checkpoint is fetched
    job = with_loras(
        open_named(named), max_lora_rank=max_lora_rank, lora_target_modules=lora_target_modules, max_loras=max_loras,
        lora_dir=lora_dir, max_batch_size=max_batch_size,
    )  # fmt: skip
    if job.notice:
        print(f"note: {job.notice}", file=sys.stderr)
    with reporting(report, job, target, max_seq_len, target_option, max_batch_size, cache_blocks) as outcome:
        if emit in ("graph", "plan"):
            from bringup.render.plan import plan_text
            from bringup.system.atomic import write_file

            text = job.graph.signature().to_json() if emit == "graph" else plan_text(job.plan)
            if out:
                write_file(out, text.encode())
                print(f"wrote {out}", file=sys.stderr)
            else:
                print(text, end="")
        elif dry_run:
            from bringup.compile.estimate.sizes import dry_run as sizes

            found = sizes(
                job, target, max_seq_len, max_batch_size, target_option, cache_blocks=cache_blocks,
                weights_form=weights or "auto",
            )  # fmt: skip
            print(table(found.rows))
        else:
            from bringup.compile.pipeline import build

            assert out, "only graph and plan are printed"
            built = build(
                job, target=target, target_options=target_option, out=out, max_seq_len=max_seq_len,
                max_batch_size=max_batch_size, cache_blocks=cache_blocks, max_input_len=max_input_len,
                aux_hidden=aux_hidden, draft_tokens=draft_tokens or 0, force=force, emit=emit,
                weights_form=weights or "auto", dump_dir=dump_dir, progress=outcome.progress,
            )  # fmt: skip
            outcome.result, outcome.bundle = "compiled", built
            print(next_step(job, built) if emit == "bundle" else f"wrote {built}", file=sys.stderr)


def _default(emit: str, named: Named) -> Path | None:
    """The path of the output without `-o`; None for what is printed."""
    return None if emit in ("graph", "plan") else Path(f"{bundle_name(named['model'], named['checkpoint'])}.{emit}")
