"""`bringup models`: the models and families that can be named."""

from __future__ import annotations

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path

import click

from bringup.cli.errors.failures import warn
from bringup.diagnostics import BringupError
from bringup.graphs.family import Family
from bringup.graphs.registry import FIDELITY, PRESETS, families
from bringup.render.words import table


@click.command("models")
@click.option("--markdown", is_flag=True, help="As a table for a README.")
def command(markdown: bool) -> None:
    """List the named models and the families, with their difference from transformers and their targets.

    float32: the largest difference of a logit, divided by the largest logit. bfloat16: the error against the exact
    logits, as a multiple of the error of transformers' bfloat16. Measured on tiny configurations, over prefill and
    decode: see `bringup explain fidelity`.
    """
    failed: list[BringupError] = []
    offered = [*families(failed)]
    served = [FAMILY, *map(_row, offered)]
    if markdown:
        served[1:1] = [("---",) * len(FAMILY)]
        print("\n".join(f"| {' | '.join(row)} |" for row in served))
        warn(failed)
        return
    print(table([("model", "checkpoint"), *((name, f"hf://{hub}") for name, (_, _, hub) in PRESETS.items())]))
    print()
    print(table(served))
    print()
    print(table([("family", "architectures"), *((f.name, ", ".join(f.architectures)) for f in offered)]))
    warn(failed)


FAMILY = ("family", "models", "features", "targets", "float32", "bfloat16")


def _row(family: Family) -> tuple[str, ...]:
    models, _, features = _title(family).partition(": ")
    measured = json.loads(FIDELITY.read_text("utf-8")).get(family.name, {})
    keys = map(str.split, measured)
    targets = [target for dtype, target, *step in keys if (dtype, step) == ("float32", ["decode"])]
    return (
        family.name,
        models,
        re.sub(r"( \([^()]*\))?\.$", "", features),
        ", ".join(targets),
        f"{_worst(measured, 'float32', 'prefill', 'decode'):.0e}" if targets else "not measured",
        f"{_worst(measured, 'bfloat16', 'ratio'):.2f} x" if targets else "not measured",
    )


def _worst(measured: dict[str, float | str], dtype: str, *last: str) -> float:
    return max(float(v) for key, v in measured.items() if key.startswith(dtype) and key.endswith(last))


def _title(family: Family) -> str:
    """The first line of a graph's file, without running it; "" for a family without a file."""
    module = family.graph.partition(":")[0] if isinstance(family.graph, str) else family.graph.__module__
    try:
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            return ""
        docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""
    except (ImportError, OSError, ValueError, SyntaxError):  # a plugin's: reported when the family is used
        return ""
    return docstring.partition("\n")[0]
