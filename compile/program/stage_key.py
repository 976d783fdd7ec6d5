"""The cache key of a traced stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePath
from types import CodeType, FunctionType, NoneType
from typing import Any

from bringup.compile.cache.engine_files import TRACING, tools
from bringup.compile.cache.source_digest import Body, body_of, digests, files_of, names_in, resolved
from bringup.compile.program.assemble import Stage
from bringup.compile.program.export_options import Layout
from bringup.graphs.core.graph import Graph
from bringup.graphs.core.module import Module

# The methods of modules and graphs that are traced. Weights do not depend on their bodies.
TRACED = ("forward", "prologue", "epilogue", "final", "hidden_state")
# The method of a graph that a stage traces; a layer traces none.
ROOTS = {
    **{"prologue": "prologue", "hidden": "hidden_state", "final": "final"},
    **{"last_rows": "epilogue", "all_rows": "epilogue"},
}

_PLAIN = (NoneType, bool, int, float, complex, str, bytes, range, PurePath)  # settings whose `repr` is their value


def stage_inputs(
    graph: Graph, layout: Layout, stage: Stage, form: str, files: Iterable[Path] = ()
) -> dict[str, str] | None:
    """Everything that determines the code of `stage`, by name; None if that cannot be determined.

    `files` are the source files of its encoder, besides those of this package.
    """
    owner, _, _ = _parts(graph, stage)
    structure, options = spelled(owner.structural_key()), spelled(graph.options)
    sources = stage_sources(graph, stage, files)
    if structure is None or options is None or sources is None:
        return None
    return {
        "stage": f"{stage.part} of {type(graph).__qualname__} as {form}",
        "name": stage.name,
        "step": str(stage.point),
        "values": str(stage.values),
        "context": f"{layout.sizes}",
        "dtype": graph.dtype,
        "options": options,
        "structure": sha256(structure.encode()).hexdigest()[:16],
        "tools": tools(TRACING),
        **sources,
    }


def stage_sources(graph: Graph, stage: Stage, files: Iterable[Path] = ()) -> dict[str, str] | None:
    """The part of `stage_inputs` that may change while the process runs: the digests of source files."""
    _, inside, outside = _parts(graph, stage)
    code = {file for kind in inside for file in files_of(kind)}.union(files)
    return digests(code, _left_out(graph, stage, inside, outside))


def _parts(graph: Graph, stage: Stage) -> tuple[Module, set[type], set[type]]:
    """The module that a stage belongs to, the classes that run in it, and those of the other stages."""
    inside, outside = set[type](), set[type]()
    owner: Module = graph
    for path, module in walk(graph):
        owner = module if path == stage.path else owner
        if stage.part == "layer":
            is_part = path == stage.path or path.startswith(f"{stage.path}.")
        else:
            is_part = not path.startswith(f"{graph.layer_path}.")
        (inside if is_part else outside).update(bases(module))
    return owner, inside, outside - inside


def bases(module: Module) -> Iterator[type]:
    """A module's class and those that it inherits from."""
    return (kind for kind in type(module).__mro__ if kind is not object)


def _left_out(graph: Graph, stage: Stage, inside: set[type], outside: set[type]) -> set[Body]:
    """The bodies of methods that run in other stages only."""
    used = _methods_used(graph, stage)
    elsewhere = [name for name in TRACED[1:] if name not in used]
    bodies = {body_of(kind, "forward") for kind in outside if issubclass(kind, Module)}
    for kind in type(graph).__mro__:
        if issubclass(kind, Graph):
            bodies |= {body_of(kind, method) for method in elsewhere}
    return {body for body in bodies if body} - set(_bodies_used(inside, elsewhere))


def _methods_used(graph: Graph, stage: Stage) -> set[str]:
    """The names of the graph's methods that a stage may call: the one that it traces, and those that this one names."""
    found: set[str] = set()
    waiting = [ROOTS[stage.part]] if stage.part in ROOTS else []
    while waiting:
        name = waiting.pop()
        values = [vars(kind)[name] for kind in type(graph).__mro__ if name in vars(kind)]
        if name in found or not values:
            continue
        found.add(name)
        for value in values:
            function = value.fget if isinstance(value, property) else value
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            waiting += list(names_in(code)) if isinstance(code, CodeType) else []
    return found


def _bodies_used(inside: Iterable[type], elsewhere: Sequence[str]) -> Iterator[Body]:
    """The bodies that a stage's classes have from others by assignment: `forward = Other.forward`."""
    for kind in inside:
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType) and not (issubclass(kind, Graph) and name in elsewhere):
                code = value.__code__
                yield Body(resolved(code.co_filename), code.co_qualname)


def walk(module: Module, path: str = "") -> Iterator[tuple[str, Module]]:
    """A module and those below it, by path."""
    yield path, module
    for name, part in module.children():
        if isinstance(part, Module):
            yield from walk(part, f"{path}.{name}" if path else name)


def spelled(value: object) -> str | None:
    """A text that is equal in every process for equal settings, and for no others; None for other types of values."""
    if isinstance(value, _PLAIN):
        return f"{type(value).__qualname__} {value!r}"
    if isinstance(value, type):
        return None if "<locals>" in value.__qualname__ else f"{value.__module__}.{value.__qualname__}"
    spelling: Any = value
    kind = type(spelling).__qualname__
    if isinstance(value, (tuple, list)):
        return _joined(kind, spelling)
    if isinstance(value, (set, frozenset)):
        return _joined(kind, spelling, in_order=False)
    if isinstance(value, Mapping):
        return _joined(kind, spelling.items())
    if is_dataclass(value):
        settings: list[object] = [getattr(spelling, field.name) for field in fields(spelling)]
        return _joined(kind, [spelling.__class__, *settings])
    return _of_array(spelling)


def spelled_function(function: Any) -> str | None:
    """A text that is equal for equal functions; None for one defined in another function, whose closure may differ."""
    if isinstance(function, partial):
        inner, given = spelled_function(function.func), spelled((function.args, sorted(function.keywords.items())))
        return None if inner is None or given is None else f"{inner} with {given}"
    name = getattr(function, "__qualname__", "<locals>")
    return None if "<locals>" in name or "<lambda>" in name else f"{function.__module__}.{name}"


def _joined(kind: str, values: Iterable[object], *, in_order: bool = True) -> str | None:
    parts = [spelled(value) for value in values]
    if None in parts:
        return None
    texts = [str(part) for part in parts]
    return f"{kind}({', '.join(texts if in_order else sorted(texts))})"


def _of_array(value: Any) -> str | None:
    """The digest of all bytes of a numpy array or scalar, because their text is abbreviated."""
    if type(value).__module__ != "numpy" or value.dtype.hasobject:
        return None
    return f"{value.dtype} {value.shape} {sha256(value.tobytes()).hexdigest()}"
