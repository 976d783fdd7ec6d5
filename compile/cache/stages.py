"""What a traced stage is made from."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import cast

from bringup.compile.cache.sources import Body, body_of, digests, file_of, source_of
from bringup.compile.stages import Layout, Stage
from bringup.graphs.graph import Graph
from bringup.graphs.module import Module

# The modules that trace and encode; editing one makes every stage anew.
TRACING = (
    "bringup.compile.export",
    "bringup.compile.stages",
    "bringup.compile.traced",
    "bringup.compile.lower.mlir",
    "bringup.compile.run.torch",
    "bringup.graphs.torch_module",
)
_TOOLS = ("torch", "torch-mlir")


def stage_inputs(graph: Graph, layout: Layout, stage: Stage, form: str) -> dict[str, str] | None:
    """Everything that decides what `stage` becomes, by name; None where that cannot be told."""
    owner, kinds, others = _parts(graph, stage)
    structure = spelled(owner.likeness())
    sources = digests(map(file_of, kinds), _left_out(graph, stage, kinds, others))
    if structure is None or sources is None:
        return None
    return {
        "stage": f"{stage.part} of {type(graph).__qualname__} as {form}",
        "name": stage.name,
        "tokens": str(stage.num_tokens),
        "values": str(stage.values),
        "context": f"{layout.context} tokens, {layout.max_blocks} blocks",
        "dtype": graph.dtype,
        "structure": sha256(structure.encode()).hexdigest()[:16],
        "tools": ", ".join(tools()),
        **sources,
        **{f"source {name}": source_of(name) for name in TRACING},
    }


def tools() -> Iterator[str]:
    """Name and version of what traces."""
    from importlib.metadata import PackageNotFoundError, version

    yield f"python {platform.python_version()}"
    for name in _TOOLS:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _parts(graph: Graph, stage: Stage) -> tuple[Module, set[type], set[type]]:
    """The module that a stage belongs to, the classes that run in it, and those of the other stages."""
    inside, outside = set[type](), set[type]()
    owner: Module = graph
    for path, module in walk(graph):
        owner = module if path == stage.path else owner
        if stage.part == "layer":
            mine = path == stage.path or path.startswith(f"{stage.path}.")
        else:
            mine = not path.startswith(f"{graph.layer_path}.")
        (inside if mine else outside).update(kind for kind in type(module).__mro__ if issubclass(kind, Module))
    return owner, inside, outside - inside


def _left_out(graph: Graph, stage: Stage, kinds: set[type], others: set[type]) -> set[Body]:
    """The bodies that run in other stages only."""
    elsewhere = {"prologue": ("epilogue",), "layer": ("prologue", "epilogue")}.get(stage.part, ("prologue",))
    graphs = [kind for kind in type(graph).__mro__ if issubclass(kind, Graph)]
    return {body_of(kind, "forward") for kind in others} | {
        body_of(kind, method) for kind in graphs for method in elsewhere
    }


def walk(module: Module, path: str = "") -> Iterator[tuple[str, Module]]:
    """A module and those below it, by path."""
    yield path, module
    for name, part in module.children():
        if isinstance(part, Module):
            yield from walk(part, f"{path}.{name}" if path else name)


def spelled(value: object) -> str | None:
    """A text that is equal for equal settings in every process; None for a value that has none."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, tuple | list):
        parts = [spelled(part) for part in cast("Sequence[object]", value)]
        return None if None in parts else f"({', '.join(map(str, parts))})"
    text = repr(value)
    return None if " at 0x" in text else text
