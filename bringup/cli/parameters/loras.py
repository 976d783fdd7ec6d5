"""LoRAs on the command line: the limits that a bundle is compiled for, and those that a run has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bringup.compile.job import Job

Command = Callable[..., Any]


def lora_options(command: Command) -> Command:
    """The limits of the LoRAs that a bundle takes."""
    for option in reversed(_LIMITS):
        command = option(command)
    return command


def _names(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for value in values for name in value.replace(",", " ").split())


def named_paths(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`NAME=PATH`, repeatable, as a dict."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise click.BadParameter(f"`{value}` is not NAME=PATH; write --lora french=./french-lora")
        if name in found:
            raise click.BadParameter(f"two LoRAs are called `{name}`; give each a name of its own")
        found[name] = path
    return found


_LIMITS = (
    click.option("--max-lora-rank", type=click.IntRange(1), metavar="R", help="Take LoRAs of up to this rank at run time."),
    click.option(
        "--lora-target-modules",
        multiple=True,
        callback=_names,
        metavar="NAMES",
        help="The modules that LoRAs may change, as PEFT names them: q_proj,v_proj; default: every linear layer.",
    ),
    click.option(
        "--max-loras",
        "--lora-slots",
        type=click.IntRange(1),
        metavar="N",
        help="LoRAs that are in the device's memory at a time; default: one for each sequence.",
    ),
    click.option(
        "--lora-dir",
        type=click.Path(),
        multiple=True,
        metavar="DIR",
        help="Take LoRAs like this one: its rank and its modules (repeatable).",
    ),
)


def with_loras(
    job: Job,
    *,
    max_lora_rank: int | None,
    lora_target_modules: tuple[str, ...],
    max_loras: int | None,
    lora_dir: tuple[str, ...],
    max_batch_size: int,
) -> Job:
    """The job with slots for LoRAs, where an option asks for some."""
    if max_lora_rank is None and not lora_dir:
        if lora_target_modules or max_loras:
            raise click.UsageError("--lora-target-modules and --max-loras go with --max-lora-rank R or --lora-dir DIR")
        return job
    from bringup.compile.lora.limits import with_slots

    return with_slots(job, lora_dir, rank=max_lora_rank, modules=lora_target_modules, count=max_loras or max_batch_size)
