"""Which modules of a graph support LoRAs, by the names of PEFT's `target_modules`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.module import Module

ALL_LINEAR = "all-linear"


def add_slots(graph: Any, names: Collection[str], slots: int, rank: int) -> None:
    """Adds slots for `slots` LoRAs of up to `rank` to the named modules of a graph.

    A module is named by its path or the last parts of it; `all-linear` names all modules of the layers, but neither the
    embedding nor the head. Raises BU024 for a name without a module.
    """
    found = list(lora_modules(graph))
    for name in names:
        if name != ALL_LINEAR and not any(_is_named(path, name) for path, _ in found):
            known = sorted({path.rpartition(".")[2] for path, _ in found})
            listed = f"LoRAs are for {', '.join(known)}" if known else "none of its modules supports LoRAs"
            message = f"no module of the graph is called `{name}`, for `lora_target_modules`"
            raise fail("BU024", message, help=did_you_mean(name, known) or listed)
    for path, module in found:
        of_layer = path.startswith(f"{graph.layer_path}.")
        if any(of_layer if name == ALL_LINEAR else _is_named(path, name) for name in names):
            module.add_lora(slots, rank)


def lora_modules(module: Module, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The module and its descendants whose class supports LoRAs, by path."""
    if module.lora_parameters:
        yield prefix.removesuffix("."), module
    for name, part in module.children():
        if isinstance(part, Module):
            yield from lora_modules(part, f"{prefix}{name}.")


def _is_named(path: str, name: str) -> bool:
    """Whether a module is the one that PEFT's `target_modules` lists: by the last parts of its path."""
    return path == name or path.endswith(f".{name}")


def module_of(parameter: str) -> str:
    """The module that `target_modules` names for a parameter: `q_proj` for `q_proj.weight`, `experts` for theirs."""
    return parameter.rpartition(".")[0]
