"""`bringup verify`: compares logits with the reference implementation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from bringup.arguments import FLOAT_DTYPES
from bringup.cli.bundles import refuse_options, refuse_options_of_bundle
from bringup.cli.parameters.options import (
    Named,
    activations_option,
    cache_dtype_option,
    job_options,
    open_named,
    revised,
)
from bringup.cli.parameters.outputs import text_or_json
from bringup.cli.parameters.ranks import Ranks, any_ranks, parallel_of, rank_options
from bringup.cli.parameters.sections import SectionedCommand
from bringup.cli.parameters.targets import DEVICE, TARGET, target_options
from bringup.cli.parameters.words import NewPath, OneOf
from bringup.cli.reporting import report_option, reporting
from bringup.cli.tokens import TOKENS
from bringup.render.json_text import json_text
from bringup.render.parity import parity_text
from bringup.render.terminal import Paint

if TYPE_CHECKING:
    from bringup.compile.job import Job
    from bringup.compile.parity.parity import Parity

TRANSFORMERS = "transformers"


class Words(Named, Ranks):
    """All options that are not named below."""


def _check_place(place: Path, option: str) -> None:
    from bringup.compile.parity.activations import checked_place

    checked_place(place, option)


@click.command("verify", cls=SectionedCommand)
@job_options
@rank_options
@click.option(
    "--against",
    default=TRANSFORMERS,
    show_default=True,
    metavar="REF",
    help="transformers, or a file of saved activations (.safetensors, .npz).",
)
@click.option(
    "--target", type=TARGET, metavar="T", help="Target to compile a MODEL for; default: torch, or cpu with --bisect."
)
@target_options
@click.option(
    "--dtype", type=OneOf(FLOAT_DTYPES), default="auto", show_default=True, help="Dtype that a MODEL computes in."
)
@cache_dtype_option
@activations_option
@click.option("--executor", type=DEVICE, metavar="NAME", help="A device of the target (`bringup targets`).")
@click.option("--max-seq-len", type=click.IntRange(1), metavar="N", help="Longest context of a MODEL, in tokens.")
@click.option("--tokens", type=TOKENS, metavar="IDS", help="Token ids of the prompt: 1,2,3. Decode steps follow it.")
@click.option("--prompt-length", type=click.IntRange(1), metavar="N", help="A prompt of N seeded random tokens.")
@click.option("--bisect", is_flag=True, help="Find the operation that differs from torch.")
@click.option(
    "-o", "--save", type=NewPath(_check_place), metavar="PATH",
    help="Save activations: to a folder, or to FILE.safetensors the reference's only.",
)  # fmt: skip
@text_or_json
@report_option
def command(
    against: str, target: str | None, target_option: Mapping[str, str], max_seq_len: int | None,
    tokens: list[int] | None, prompt_length: int | None, bisect: bool, save: Path | None, executor: str | None,
    form: str, report: Path | None, **named: Unpack[Words],
) -> int:  # fmt: skip
    """Compare MODEL, or a BUNDLE, with a reference: logits, then module by module; report the first difference.

    MODEL is a name or a Python file; it may be omitted if the checkpoint names its architecture. The reference is
    transformers on the same checkpoint and config, or saved activations. Exits with 1 if the difference exceeds the
    bound.

    With any option under Ranks, compares all ranks with the undivided graph instead: torch runs both here, in float32.
    """
    from bringup.compile.bundle.folder import MANIFEST, bundle_of
    from bringup.compile.targets.selection import select
    from bringup.compile.verify.command import verify

    if tokens is not None and prompt_length is not None:
        raise click.UsageError("give either --tokens 1,2,3 or --prompt-length N")
    if against != TRANSFORMERS and (tokens is not None or prompt_length is not None):
        raise click.UsageError("a file of activations contains its own tokens; leave out --tokens and --prompt-length")
    name = named["model"]
    bundle = None if name is None else bundle_of(name)
    if bundle is None and name and (Path(name) / MANIFEST).is_file():
        print(f"note: `{name}` is the model of that name; for the bundle here write ./{name}", file=sys.stderr)
    if bundle:
        own = {"--target": target, "--target-option": target_option, "--max-seq-len": max_seq_len}
        refuse_options_of_bundle(bundle, named, own)
    if any_ranks(named):
        given = {
            "--against": against != TRANSFORMERS, "--target": target, "--target-option": target_option,
            "--max-seq-len": max_seq_len, "--bisect": bisect, "--save": save, "--executor": executor,
            "--report": report, "--dtype": named.get("dtype", "auto") != "auto",
            "--cache-dtype": named.get("cache_dtype"), "--activations": named.get("activations"),
        }  # fmt: skip
        refuse_options(given, "ranks are compared in float32 with the undivided graph, and nothing is compiled")
        return _show(_ranks(named, bundle, prompt_length if tokens is None else tokens), named, as_json=form == "json")
    if bundle:
        job, model, context = None, bundle, None
        checkpoint = revised(None, named["checkpoint"], named["revision"])
        if report:
            job, target, target_option, context = _of_bundle(bundle, checkpoint)
    else:
        checkpoint, context, target = None, max_seq_len, target or ("cpu" if bisect else "torch")
        select(target, target_option)  # errors of options come before a checkpoint is fetched
        job = model = open_named(named)
        if job.notice:
            print(f"note: {job.notice}", file=sys.stderr)
    with reporting(report, job, target or "", context, target_option) as outcome:
        outcome.bundle = bundle
        outcome.parity = parity = verify(
            model,
            checkpoint,
            against=against,
            target=target or "torch",
            target_options=target_option,
            max_seq_len=max_seq_len,
            prompt_tokens=prompt_length if tokens is None else tokens,
            bisect=bisect,
            save=save,
            executor=executor,
            progress=outcome.progress,
        )
        outcome.result = "agrees" if parity.ok else "departs"
    return _show(parity, named, as_json=form == "json")


def _show(parity: Parity, named: Named, *, as_json: bool) -> int:
    if as_json:
        print(json_text(parity.as_json()), end="")
    else:
        name = named["model"] or named["checkpoint"] or parity.model
        print(parity_text(parity, name, Paint.of(sys.stdout)), end="")
    return 0 if parity.ok else 1


def _ranks(named: Words, bundle: Path | None, prompt_tokens: list[int] | int | None) -> Parity:
    from bringup.compile.ranks.verify import verify_ranks
    from bringup.render.progress import StageLines

    return verify_ranks(
        bundle or open_named(named),
        revised(None, named["checkpoint"], named["revision"]),
        parallel=parallel_of(named),
        prompt_tokens=prompt_tokens,
        progress=StageLines(),
    )


def _of_bundle(bundle: Path, checkpoint: str | None) -> tuple[Job, str, Mapping[str, str], int]:
    from bringup.compile.bundle.bundle_job import job_of_bundle
    from bringup.compile.bundle.folder import read_manifest

    manifest = read_manifest(bundle)
    options: Mapping[str, str] = manifest.get("target_options") or {}
    return job_of_bundle(manifest, checkpoint), manifest["target"], options, manifest["max_seq_len"]
