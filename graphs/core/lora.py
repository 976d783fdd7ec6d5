"""Which modules of a graph take LoRAs: those whose class does, by the names that PEFT's `target_modules` has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from bringup.diagnostics import did_you_mean, fail
from bringup.graphs.core.module import Module

ALL_LINEAR = "all-linear"


def add_slots(graph: Any, names: Collection[str], slots: int, rank: int) -> None:
    """Gives the named modules of a graph's layers room for `slots` LoRAs of up to `rank`.

    A module is named by its path or the last parts of it; `all-linear` names all. Raises BU024 for a name of none.
    """
    layers: list[Module] = list(graph.layers)
    found = [pair for index, layer in enumerate(layers) for pair in takers(layer, f"{graph.layer_path}.{index}.")]
    for name in names:
        if not any(is_named(path, (name,)) for path, _ in found):
            known = sorted({path.rpartition(".")[2] for path, _ in found})
            listed = f"LoRAs are for {', '.join(known)}" if known else "no module of its layers takes a LoRA"
            message = f"no module of the layers is called `{name}`, for `lora_target_modules`"
            raise fail("BU024", message, help=did_you_mean(name, known) or listed)
    for path, module in found:
        if is_named(path, names):
            module.add_lora(slots, rank)


def takers(module: Module, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The modules below one, or itself, whose class takes LoRAs, by path."""
    if module.takes_lora:
        yield prefix.removesuffix("."), module
    for name, part in module.children():
        if isinstance(part, Module):
            yield from takers(part, f"{prefix}{name}.")


def is_named(path: str, names: Collection[str]) -> bool:
    """Whether a module is one of those that PEFT's `target_modules` lists: by the last parts of its path, or all."""
    return ALL_LINEAR in names or any(path == name or path.endswith(f".{name}") for name in names)
