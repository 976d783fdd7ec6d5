"""Which modules of a graph take LoRAs: those whose class does, by the names that PEFT's `target_modules` has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.module import Module

ALL_LINEAR = "all-linear"


def add_slots(graph: Any, names: Collection[str], slots: int, rank: int) -> None:
    """Gives the named modules of a graph room for `slots` LoRAs of up to `rank`.

    A module is named by its path or the last parts of it; `all-linear` names all of the layers, and so neither the
    embedding nor the head. Raises BU024 for a name of none.
    """
    found = list(takers(graph))
    for name in names:
        if name != ALL_LINEAR and not any(_is_named(path, name) for path, _ in found):
            known = sorted({path.rpartition(".")[2] for path, _ in found})
            listed = f"LoRAs are for {', '.join(known)}" if known else "no module of it takes a LoRA"
            message = f"no module of the graph is called `{name}`, for `lora_target_modules`"
            raise fail("BU024", message, help=did_you_mean(name, known) or listed)
    for path, module in found:
        of_layer = path.startswith(f"{graph.layer_path}.")
        if any(of_layer if name == ALL_LINEAR else _is_named(path, name) for name in names):
            module.add_lora(slots, rank)


def takers(module: Module, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The modules below one, or itself, whose class takes LoRAs, by path."""
    if module.lora_parameters:
        yield prefix.removesuffix("."), module
    for name, part in module.children():
        if isinstance(part, Module):
            yield from takers(part, f"{prefix}{name}.")


def _is_named(path: str, name: str) -> bool:
    """Whether a module is the one that PEFT's `target_modules` lists: by the last parts of its path."""
    return path == name or path.endswith(f".{name}")


def module_of(parameter: str) -> str:
    """The module that `target_modules` names for a parameter: `q_proj` for `q_proj.weight`, `experts` for its three."""
    return parameter.rpartition(".")[0]
