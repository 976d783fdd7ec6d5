"""`bringup bench`: the speed of a bundle, or of a model that is compiled for it, compared with other engines."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from bringup.arguments import FLOAT_DTYPES
from bringup.cli.parameters.options import Named, job_options, open_named, quantize_option, revised, weights_option
from bringup.cli.parameters.outputs import text_or_json
from bringup.cli.parameters.sections import SectionedCommand
from bringup.cli.parameters.targets import DEVICE, TARGET, target_options
from bringup.cli.parameters.words import OneOf
from bringup.diagnostics import BringupError, fail
from bringup.render.json_text import json_text

if TYPE_CHECKING:
    from bringup.compile.bench.timing import Shape
    from bringup.progress import Progress

INPUTS, OUTPUT, BATCHES = (32, 512), 128, (1, 8)
PEERS = ("transformers", "torch.compile", "llama.cpp")


class _Counts(click.ParamType[list[int]]):
    name = "counts"

    def convert(self, value: str | list[int], param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        words = value.split(",")
        if not all(word.isdecimal() and int(word) for word in words):
            self.fail(f"`{value}` is not a list of positive integers; write them as in 1,8")
        return [int(word) for word in words]


COUNTS = _Counts()


def _default(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


@click.command("bench", cls=SectionedCommand)
@job_options
@click.option("--input", "taken", type=COUNTS, metavar="N,N", help=f"Tokens of prompts; default: {_default(INPUTS)}.")
@click.option(
    "--output", "new", type=click.IntRange(1), metavar="N", help=f"New tokens of each sequence; default: {OUTPUT}."
)
@click.option(
    "--batch", "batches", type=COUNTS, metavar="B,B", help=f"Sequences at a time; default: {_default(BATCHES)}."
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Measured rounds.")
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, metavar="N", help="Warm-up rounds.")
@click.option("--against", type=OneOf(PEERS), multiple=True, metavar="ENGINE",
              help="Another engine to measure: transformers, torch.compile or llama.cpp (repeatable).")  # fmt: skip
@click.option("--gguf", type=click.Path(), metavar="FILE", help="The GGUF file of the same model, for llama.cpp.")
@click.option("--executor", type=DEVICE, metavar="NAME", help="A device of the bundle's target (`bringup targets`).")
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Processors for each engine; default: all.")
@click.option("--target", type=TARGET, metavar="T", help="Target to compile a MODEL for; default: cpu.")
@target_options
@click.option(
    "--dtype", type=OneOf(FLOAT_DTYPES), default="auto", show_default=True, help="Dtype that a MODEL computes in."
)
@weights_option
@quantize_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="S", help="Seed of the prompts.")
@text_or_json
def command(
    taken: list[int] | None, new: int | None, batches: list[int] | None, rounds: int, warmup: int,
    against: tuple[str, ...], gguf: str | None, executor: str | None, threads: int | None, target: str | None,
    target_option: Mapping[str, str], weights: str | None, seed: int, form: str, **named: Unpack[Named],
) -> None:  # fmt: skip
    """Measure MODEL, which is compiled first, or a BUNDLE: time to the first token, latency of the others, memory.

    Prompts are random tokens, the same for every engine; each engine runs in a separate process. Shapes that do not
    fit the bundle are skipped, unless --input or --batch requests them.
    """
    from bringup.compile.bench.bench import bench
    from bringup.compile.bench.timing import Shape
    from bringup.render.bench import bench_text
    from bringup.render.progress import StageLines

    if gguf and "llama.cpp" not in against:
        raise click.UsageError("--gguf is the file of llama.cpp, which is not measured: give --against llama.cpp too")
    lines = StageLines()
    shapes = [Shape(b, i, new or OUTPUT) for b, i in product(batches or BATCHES, taken or INPUTS)]
    given = (taken, batches) != (None, None)
    with _bundle(named, target, target_option, weights, shapes, given, lines) as bundle:
        report = bench(
            bundle,
            shapes if given else fitting(bundle, shapes),
            against=tuple(dict.fromkeys(against)),
            checkpoint=revised(None, named["checkpoint"], named["revision"]),
            gguf=gguf,
            executor=executor,
            threads=threads,
            rounds=rounds,
            warmup=warmup,
            seed=seed,
            progress=lines,
        ).as_json()
    print((json_text if form == "json" else bench_text)(report), end="")


@contextmanager
def _bundle(
    named: Named, target: str | None, options: Mapping[str, str], weights: str | None, shapes: Sequence[Shape],
    given: bool, progress: Progress,
) -> Generator[Path]:  # fmt: skip
    """The named bundle, or one that is compiled for the shapes and removed afterwards.

    Raises BU024 for a shape that does not fit the model's context if `given` by options, or if none fits.
    """
    from bringup.compile.bundle.folder import bundle_of
    from bringup.compile.pipeline import build
    from bringup.compile.targets.selection import select

    found = bundle_of(named["model"]) if named["model"] else None
    if found is not None:
        of_model = named["config"], named["adapter"], named["allow_config"], named["also"], named.get("quantize")
        if target or options or weights or any(of_model) or named.get("dtype", "auto") != "auto":
            raise click.UsageError(f"`{found}` is a bundle: it has its own config, target, options, dtype and weights")
        yield found
        return
    select(target or "cpu", options)  # errors of options come before a checkpoint is fetched
    job = open_named(named)
    most = job.graph.config.max_positions
    long = [shape for shape in shapes if shape.length > most]
    if long and (given or len(long) == len(shapes)):
        message = f"{long[0].taken} tokens and {long[0].new} new ones do not fit the model's context of {most}"
        raise fail("BU024", message, help="request fewer: --input N --output N")
    with tempfile.TemporaryDirectory(prefix="bringup-") as folder:
        yield build(
            job, out=Path(folder, "bundle"), target=target or "cpu", target_options=options,
            max_seq_len=min(most, max(shape.length for shape in shapes)),
            max_batch_size=max(shape.batch for shape in shapes),
            weights_form=weights or "auto", progress=progress,
        )  # fmt: skip


def fitting(bundle: Path, shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes that fit a bundle. Raises BU024 if none does."""
    from bringup.compile.bench.bench import check_shape
    from bringup.compile.bundle.folder import read_manifest

    manifest = read_manifest(bundle)
    refused: dict[Shape, BringupError] = {}
    for shape in shapes:
        try:
            check_shape(manifest, shape)
        except BringupError as error:
            refused[shape] = error
    if len(refused) == len(shapes):
        raise refused[shapes[0]]
    for message in dict.fromkeys(error.findings[0].message for error in refused.values()):
        print(f"note: {message}", file=sys.stderr)
    return [shape for shape in shapes if shape not in refused]
