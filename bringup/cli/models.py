"""`bringup models`: what can be named."""

from __future__ import annotations

import click

from bringup.graphs.registry import PRESETS, families
from bringup.render.words import table


@click.command("models")
def command() -> None:
    """List the models that have a name, and the architectures that --checkpoint may hold."""
    print(table([("model", "checkpoint"), *((name, f"hf://{preset[2]}") for name, preset in PRESETS.items())]))
    print()
    print(table([("family", "architectures"), *((f.name, ", ".join(f.architectures)) for f in families())]))
