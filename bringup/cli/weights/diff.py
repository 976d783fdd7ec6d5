"""`bringup diff`: the differences between two checkpoints, bundles or plans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bringup.cli.parameters.outputs import text_or_json
from bringup.cli.parameters.words import CHECKPOINT
from bringup.render.visible import brief, visible
from bringup.render.words import plural, table

if TYPE_CHECKING:
    from bringup.compile.convert.compare import Difference


@click.command("diff")
@click.argument("first", type=CHECKPOINT, metavar="A")
@click.argument("second", type=CHECKPOINT, metavar="B")
@click.option("--headers", is_flag=True, help="Compare names, shapes and dtypes only, and read no weights.")
@text_or_json
def command(first: str, second: str, headers: bool, form: str) -> int:
    """Print the differences between A and B. Exits with 1 if there are any.

    A and B are checkpoints, bundles, folders that `bringup convert` wrote, or two locks of plans (`bringup lock`).
    Tensors are compared bit by bit, one at a time.
    """
    from bringup.compile.convert.compare import diff

    found = diff(first, second, values=not headers)
    if form == "json":
        print(json.dumps({"equal": not found, "differences": [asdict(each) for each in found]}, indent=2))
    elif found:
        print(table([row for each in found for row in _rows(each)]))
        print(plural(len(found), "difference"))
    else:
        print("no differences")
    return int(bool(found))


def _rows(each: Difference) -> Iterator[tuple[str, str, str]]:
    """The difference, with each of its names on a line."""
    first, *others = re.split(r", (?![^{]*\})", each.names)  # not within {0, 2}
    yield visible(each.what), visible(brief(first)), visible(each.text)
    yield from (("", visible(brief(name)), "") for name in others)
