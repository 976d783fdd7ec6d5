"""`bringup diff`: the differences between two checkpoints, bundles or plans."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from bringup.cli.parameters.words import CHECKPOINT, OneOf
from bringup.render.visible import visible
from bringup.render.words import plural, table


@click.command("diff")
@click.argument("first", type=CHECKPOINT, metavar="A")
@click.argument("second", type=CHECKPOINT, metavar="B")
@click.option("--headers", is_flag=True, help="Compare names, shapes and dtypes only, and read no weights.")
@click.option(
    "--format", "form", type=OneOf(["text", "json"]), default="text", show_default=True, help="Output format."
)
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
        print(table([(visible(each.what), visible(each.names), visible(each.text)) for each in found]))
        print(plural(len(found), "difference"))
    else:
        print("no differences")
    return int(bool(found))
