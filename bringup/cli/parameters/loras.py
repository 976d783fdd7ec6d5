"""LoRAs on the command line: the limits that a bundle is compiled for, and those that a run has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from bringup.cli.parameters.sections import Command, SharedOption, with_options

if TYPE_CHECKING:
    from bringup.compile.job import Job


def lora_options(command: Command) -> Command:
    """The limits of the LoRAs that a bundle supports."""
    return with_options(command, _LIMITS)


def run_lora_options(command: Command) -> Command:
    """The LoRAs of a run, and the one that is used."""
    return with_options(command, _OF_A_RUN)


def serve_lora_option(command: Command) -> Command:
    """The LoRAs of a server."""
    return click.option(
        "--lora",
        multiple=True,
        callback=_paths,
        metavar="NAME=PATH",
        help="A LoRA, as peft saves one, for requests whose model is NAME (repeatable).",
    )(command)


def chosen_lora(loras: Mapping[str, str], name: str | None, *, batched: bool) -> str | None:
    """The LoRA of a run of one prompt: the only one, or the one of several that `--lora-name` selects.

    Raises a usage error for a name that no `--lora` has, for several without a selection, and for a selection if each
    request has its own.
    """
    if batched:
        if name is not None:
            raise click.UsageError('--lora-name is for one prompt; in the file of --batch write "lora": "NAME"')
        return None
    if name is not None and name not in loras:
        raise click.UsageError(f"unknown LoRA `{name}`; write --lora {name}=PATH")
    if name is None and len(loras) > 1:
        raise click.UsageError("several LoRAs are loaded; select one with --lora-name NAME")
    return name or next(iter(loras), None)


def _names(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for value in values for name in value.replace(",", " ").split())


def _paths(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`NAME=PATH`, repeatable, as a dict."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise click.BadParameter(f"`{value}` is not NAME=PATH; write --lora french=./french-lora")
        if name in found:
            raise click.BadParameter(f"two LoRAs have the name `{name}`; use different names")
        found[name] = path
    return found


_option = partial(click.option, cls=SharedOption, section="LoRAs at run time")
_LIMITS = (
    _option(
        "--max-lora-rank", type=click.IntRange(1), metavar="R", help="Support LoRAs of up to this rank at run time."
    ),
    _option(
        "--lora-target-modules",
        multiple=True,
        callback=_names,
        metavar="NAMES",
        help="The modules that LoRAs may change, as peft or TensorRT-LLM names them; default: every linear layer.",
    ),
    _option(
        "--max-loras",
        "--lora-slots",
        type=click.IntRange(1),
        metavar="N",
        help="LoRAs in the device's memory at a time; default: one for each sequence.",
    ),
    _option(
        "--lora-dir",
        type=click.Path(),
        multiple=True,
        metavar="DIR",
        help="Support LoRAs with the rank and modules of this one (repeatable).",
    ),
)
_OF_A_RUN = (
    click.option(
        "--lora",
        multiple=True,
        callback=_paths,
        metavar="NAME=PATH",
        help="A LoRA, as peft saves one, for the prompt or for the requests of --batch that name it (repeatable).",
    ),
    click.option("--lora-name", metavar="NAME", help="The LoRA for the prompt, if there are several."),
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
    """The job with slots for LoRAs, if an option requests any."""
    if max_lora_rank is None and not lora_dir:
        if lora_target_modules or max_loras:
            raise click.UsageError("--lora-target-modules and --max-loras go with --max-lora-rank R or --lora-dir DIR")
        return job
    from bringup.compile.lora.limits import with_slots

    return with_slots(job, lora_dir, rank=max_lora_rank, modules=lora_target_modules, count=max_loras or max_batch_size)
