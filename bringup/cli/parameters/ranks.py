"""Options for the division of a model among ranks."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import click

from bringup.cli.parameters.sections import Command, SharedOption, with_options
from bringup.diagnostics import fail
from bringup.system.os_errors import reason

if TYPE_CHECKING:
    from bringup.adapters.apply.parallel import Parallel


class Ranks(TypedDict):
    """The options of `rank_options`, as click passes them."""

    tp: int | None
    ep: int | None
    pp: int | None
    stage_layers: tuple[int, ...]
    vocab_multiple: int
    expert_map: Path | None
    redundant_experts: int


def _numbers(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    words = value.split(",") if value else []
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", word) for word in words):
        raise click.BadParameter(f"`{value}` is not a list of integers; write 11,11,10")
    return tuple(int(word) for word in words)


_SIZE = click.IntRange(1)
_option = partial(click.option, cls=SharedOption, section="Ranks")
_OPTIONS = (
    _option("--tp", type=_SIZE, metavar="N", help="Divide heads, feed-forward and vocabulary among N ranks."),
    _option("--ep", type=_SIZE, metavar="N", help="Divide the experts among N ranks."),
    _option("--pp", type=_SIZE, metavar="N", help="Divide layers among N pipeline stages."),
    _option("--stage-layers", callback=_numbers, metavar="N,N,…", help="Layers of each stage; default: spread evenly."),
    _option(
        "--vocab-multiple", type=_SIZE, default=1, metavar="N", help="Pad the vocabulary with zeros to a multiple of N."
    ),
    _option(
        "--expert-map",
        type=click.Path(path_type=Path),
        metavar="FILE.json",
        help="The logical expert of each physical one: a list, or a list for each layer.",
    ),
    _option("--redundant-experts", type=click.IntRange(0), default=0, metavar="N", help="Repeat the first N experts."),
)


def rank_options(command: Command) -> Command:
    """`--tp`, `--ep`, `--pp`, and their further options."""
    return with_options(command, _OPTIONS)


def any_ranks(options: Ranks) -> bool:
    """Whether any rank option was used."""
    sizes = any(options[name] is not None for name in ("tp", "ep", "pp"))
    experts = options["expert_map"] is not None or options["redundant_experts"] > 0
    return sizes or experts or bool(options["stage_layers"]) or options["vocab_multiple"] > 1


def parallel_of(options: Ranks) -> Parallel:
    """The division that the options define. Raises BU045 and BU138."""
    from bringup.adapters.apply.parallel import Parallel

    file = options["expert_map"]
    return Parallel(
        tp=options["tp"] or 1,
        ep=options["ep"] or 1,
        pp=options["pp"] or 1,
        stage_layers=options["stage_layers"],
        vocab_multiple=options["vocab_multiple"],
        experts=_expert_map(file) if file else (),
        redundant=options["redundant_experts"],
    )


def _expert_map(file: Path) -> tuple[tuple[int, ...], ...]:
    """A list, a list of lists, or an object with one under `physical_to_logical_map`, SGLang's name for it."""
    from bringup.adapters.checkpoints.bounded_json import strict_value

    help = 'write [0, 1, 2, 3, 0, 2], a list of such lists, or {"physical_to_logical_map": …}'
    if not file.is_file():
        raise fail("BU034", f"no such file: `{file}`", help=help, file=str(file))
    try:
        found: Any = strict_value(file.read_bytes())
    except (OSError, ValueError) as error:
        raise fail("BU138", f"`{file}` is not an expert map: {reason(error)}", help=help, file=str(file)) from error
    if isinstance(found, dict):
        found = cast("dict[str, Any]", found).get("physical_to_logical_map")
    rows: Any = [found] if _is_row(found) else found
    if not isinstance(rows, list) or not rows or not all(_is_row(row) for row in cast("list[Any]", rows)):
        raise fail("BU138", f"`{file}` is not an expert map", help=help, file=str(file))
    return tuple(tuple(row) for row in cast("list[list[int]]", rows))


def _is_row(row: Any) -> bool:
    items = cast("list[Any]", row) if isinstance(row, list) else []
    return bool(items) and all(type(item) is int for item in items)
