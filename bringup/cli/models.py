"""`bringup models`: what can be named."""

from __future__ import annotations

import click

from bringup.graphs.registry import PRESETS, families
from bringup.render.words import table


@click.command("models")
def command() -> None:
    """List the models that have a name, and the architectures that --checkpoint may hold."""
    named = [(name, f"hf://{repository}") for name, (_, _, repository) in PRESETS.items()]
    served = [(family.name, ", ".join(family.architectures)) for family in families()]
    print(table([("model", "checkpoint"), *named]))
    print()
    print(table([("family", "architectures"), *served]))
