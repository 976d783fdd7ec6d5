"""The default name of a bundle, the next command for it, and what commands print about one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bringup.graphs.core.graph import HIDDEN

if TYPE_CHECKING:
    from bringup.cli.parameters.options import Named
    from bringup.compile.job import Job


def bundle_name(model: str | None, checkpoint: str | None) -> str:
    """The model's name; else that of the checkpoint: `hf://org/name@main` → `name`."""
    if model and not model.endswith(".py"):  # a registered name, even if there is a link of that name
        return Path(model).name
    source = checkpoint or ""
    scheme, colon, rest = source.partition(":")
    path = Path(os.path.realpath(model or (re.split("@|==", rest)[0] if colon else scheme)))
    return path.stem if path.suffix in (".py", ".safetensors", ".gguf") else path.name


def next_step(job: Job, bundle: Path) -> str:
    """The command that runs the bundle; for a model that needs other inputs, the call in Python."""
    if HIDDEN in job.graph.inputs:
        return f"run it with its main model: bringup run MAIN.bundle --draft {bundle}"
    if job.graph.inputs:
        named = ", ".join(f"{name}=rows" for name in job.graph.inputs)
        return f'run it from Python: bringup.load("{bundle}").prefill(tokens, {named})'
    prompt = '--prompt "Hello, I am"' if job.checkpoint.tokenizer else "--tokens 1,2,3"
    return f"run it: bringup run {bundle} {prompt}"


def note_dummy(manifest: Mapping[str, Any]) -> None:
    """Prints a note if a bundle has random weights."""
    if manifest["weights"] == "dummy":
        print("note: random dummy weights: the output is meaningless", file=sys.stderr)


def refuse_options_of_bundle(bundle: Path, named: Named, more: Mapping[str, Any] | None = None) -> None:
    """A usage error for options that a bundle defines itself; `more` are further ones, by name."""
    given: dict[str, Any] = {
        **(more or {}),
        "--dtype": named.get("dtype", "auto") != "auto",
        "--cache-dtype": named.get("cache_dtype"),
        "--quantize": named.get("quantize"),
        "--activations": named.get("activations"),
        "--config": named["config"],
        "--adapter": named["adapter"],
        "--allow-config": named["allow_config"],
    }
    refuse_options(given, f"`{bundle}` is a bundle: it has its own model, config, adapter, target, dtypes and context")


def refuse_options(given: Mapping[str, Any], message: str) -> None:
    """A usage error for options that have a value."""
    if refused := [option for option, value in given.items() if value]:
        raise click.UsageError(f"{message}; leave out {' and '.join(refused)}")
