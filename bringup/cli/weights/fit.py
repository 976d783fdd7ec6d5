"""`bringup fit`: whether a model fits on some devices."""

from __future__ import annotations

import re
import sys
from typing import Unpack

import click

from bringup.arguments import FLOAT_DTYPES
from bringup.cli.parameters.options import Named, cache_dtype_option, job_options, open_named, weights_option
from bringup.cli.parameters.ranks import Ranks, parallel_of, rank_options
from bringup.cli.parameters.sections import SectionedCommand
from bringup.cli.parameters.words import Number, OneOf, Word
from bringup.diagnostics import did_you_mean
from bringup.render.words import plural, size, table


class _Device(Word):
    """A device by name, or its memory (`24GB`), in bytes."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from bringup.compile.estimate.fit import DEVICES

        if value.lower() not in DEVICES and not _MEMORY.fullmatch(value):
            hint = did_you_mean(value, DEVICES) or f"write {', '.join(DEVICES)}, or a memory such as 24GB"
            self.fail(f"`{value}` is not a known device; {hint}", param, ctx)
        return value


class _Tokens(click.ParamType[int]):
    """A number of tokens: 32768 or 32k."""

    name = "tokens"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+)([kKmM]?)", str(value))
        if not found or not int(found[1]):
            self.fail(f"`{value}` is not a number of tokens; write 32768 or 32k", param, ctx)
        return int(found[1]) << {"": 0, "k": 10, "m": 20}[found[2].lower()]


_MEMORY = re.compile(r"(\d+)(?:GB|gb|G|g)")


def _devices() -> list[str]:
    from bringup.compile.estimate.fit import DEVICES

    return list(DEVICES)


class Words(Named, Ranks):
    """All options that are not named below."""


@click.command("fit", cls=SectionedCommand)
@job_options
@click.option("--device", type=_Device(_devices), required=True, metavar="D", help="h200, mi300x, …, or 24GB.")
@click.option("--dtype", type=OneOf(FLOAT_DTYPES), default="auto", show_default=True, help="Dtype of the weights.")
@rank_options
@click.option(
    "--ctx", "--max-seq-len", "ctx", type=_Tokens(), metavar="N",
    help="Tokens of each sequence (32k); default: the model's longest.",
)  # fmt: skip
@click.option(
    "--batch", "--max-batch-size", "batch", type=click.IntRange(1), default=1, show_default=True, metavar="B",
    help="Sequences at a time.",
)  # fmt: skip
@click.option(
    "--page-size",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    metavar="N",
    help="Tokens in a cache page.",
)
@cache_dtype_option
@weights_option
@click.option(
    "--memory-share", type=Number(0, 1, min_open=True), default=0.9, show_default=True, metavar="F",
    help="The fraction of the device's memory to use.",
)  # fmt: skip
def command(
    device: str, ctx: int | None, batch: int, page_size: int, memory_share: float, weights: str | None,
    **words: Unpack[Words],
) -> int:  # fmt: skip
    """Print the memory that each rank of MODEL needs on a device. Exits with 1 if it does not fit.

    Weights and cache are exact; workspace is an upper bound for eager execution. No weight is read.
    """
    from bringup.compile.estimate.fit import DEVICES, fit
    from bringup.compile.job import in_dtype

    job, cache_dtype = open_named(words, headers_only=True), words.get("cache_dtype")
    named = job.config.get("dtype", job.config.get("torch_dtype"))
    if job.checkpoint.is_dummy and words.get("dtype") == "auto" and named in FLOAT_DTYPES:
        job = in_dtype(job, named)  # without a checkpoint, the dtype is the config's
    found = _MEMORY.fullmatch(device)
    memory = int(found[1]) if found else DEVICES[device.lower()]
    context = ctx or job.graph.config.max_positions
    if context > job.graph.config.max_positions:
        print(f"note: the model has {job.graph.config.max_positions:,} positions, fewer than --ctx", file=sys.stderr)
    need = fit(
        job, memory * 10**9, parallel=parallel_of(words), context=context, batch=batch, page_size=page_size,
        cache_dtype=cache_dtype, share=memory_share, packed=weights != "float",
    )  # fmt: skip
    sequences = f"{plural(batch, 'sequence')} of {context:,} tokens, {size(need.cache_each)} each"
    rows = [
        ("device", f"{memory} GB, {memory_share:.0%} of it: {size(need.limit)}"),
        ("weights", f"{size(need.weights)} on the fullest of {plural(need.ranks, 'rank')}, {job.graph.dtype}"),
        ("cache", f"{size(need.cache)}: {sequences}, {cache_dtype or job.graph.dtype}"),
        ("workspace", f"at most {size(need.workspace)}"),
        ("total", size(need.total)),
    ]
    if need.fits:
        rows.append(
            ("fits", f"{size(need.limit - need.total)} left; room for {plural(need.largest_batch, 'sequence')}")
        )
    else:
        enough = f"; {need.enough_ranks} ranks are enough" if need.enough_ranks else ""
        smaller = f"; {plural(need.largest_batch, 'sequence')} would fit" if need.largest_batch else ""
        rows.append(("does not fit", f"{size(need.total - need.limit)} short{smaller}{enough}"))
    print(table(rows))
    return 0 if need.fits else 1
