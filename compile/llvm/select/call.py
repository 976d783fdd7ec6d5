"""Kernel and Call: the kernels that a launch runs on the CPU, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from bringup.compile.kernels.call import Operand
from bringup.compile.schedule.graph.op_graph import Group, Node, OpGraph

# The buffer of a `Pointer` to memory that all calls of a group, and all threads, share. No parameter has a colon.
SHARED = "scratch:shared"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, with all settings that its code depends on. Equal kernels are compiled once.

    `stem` names a file of bringup/compile/llvm/kernels and the function in it that emits the code.
    """

    stem: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """The name of the function in the object file."""
        return f"{self.stem}_{sha256(repr(self.settings).encode()).hexdigest()[:24]}"

    @property
    def inner(self) -> tuple[Kernel, ...]:
        """The kernels that it calls: those among its settings."""
        return tuple(value for _, value in self.settings if isinstance(value, Kernel))

    @property
    def values(self) -> Mapping[str, Any]:
        """The settings, by name."""
        return dict(self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One run of a kernel by all threads. `arguments` fill its slots; `scratch` is in bytes per thread.

    `shared` is the size in bytes of the buffer SHARED, if an argument points to it.
    """

    kernel: Kernel
    arguments: tuple[Operand, ...]
    scratch: int = 0
    shared: int = 0


def call(
    stem: str, settings: Mapping[str, Any], arguments: list[Operand], scratch: int = 0, shared: int = 0
) -> Call:  # fmt: skip
    """A call of a kernel with these settings."""
    kernel = Kernel(stem, tuple(sorted(settings.items())))
    return Call(kernel=kernel, arguments=tuple(arguments), scratch=scratch, shared=shared)


def call_of_single(
    selectors: Mapping[str, Callable[[OpGraph, Node], Call | None]], graph: OpGraph, group: Group
) -> tuple[Call, ...] | None:
    """The call for a group of one node, by the selector for its operation; None if none supports it."""
    select = selectors.get(group.nodes[0].short) if len(group.nodes) == 1 else None
    found = select(graph, group.nodes[0]) if select else None
    return None if found is None else (found,)
