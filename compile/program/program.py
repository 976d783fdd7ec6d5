"""A Program: what export hands to every lowering. Plain data but for `Program.exported`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bringup.spec import Shape

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram


Value = tuple[Shape, str]  # what passes between stages: its shape and dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape and dtype (a numpy / ml_dtypes name) of a tensor bound by name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One traced stage, shared by all its calls.

    It takes ({weight: tensor}, {state: tensor}, (value, ...), tuple(Step)), flattened in that order, and gives a tuple
    of results. Of its states it changes `updates` in place. Names are relative to `Call.prefix`.
    """

    name: str
    weights: tuple[str, ...]
    states: tuple[str, ...]
    values: tuple[Value, ...]
    results: tuple[Value, ...]
    updates: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Function:
        return cls(
            name=data["name"],
            weights=tuple(data["weights"]),
            states=tuple(data["states"]),
            values=_values(data["values"]),
            results=_values(data["results"]),
            updates=tuple(data["updates"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A use of a function; `inputs` index the entry's values."""

    function: str
    prefix: str
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A straight line of calls over N tokens of B sequences.

    Its values are `inputs`, which are given beside the step, and then what its calls give. `outputs` are the values
    that it gives, by name: "logits" always.
    """

    name: str
    num_tokens: int
    num_sequences: int
    calls: tuple[Call, ...]
    outputs: Mapping[str, int]
    inputs: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """All that an executor needs beside the code; plain data, kept in a bundle as JSON.

    `weights` are given by name, tables such as rope's among them; `states` the executor zeroes and keeps.
    `max_blocks` bounds P, the second size of `block_table`.
    """

    functions: tuple[Function, ...]
    entries: tuple[Entry, ...]
    weights: tuple[TensorSpec, ...]
    states: tuple[TensorSpec, ...]
    max_blocks: int
    all_logits: bool

    def function(self, name: str) -> Function:
        return next(f for f in self.functions if f.name == name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Interface:
        return cls(
            functions=tuple(map(Function.from_json, data["functions"])),
            entries=tuple(_entry(e) for e in data["entries"]),
            weights=_specs(data["weights"]),
            states=_specs(data["states"]),
            max_blocks=data["max_blocks"],
            all_logits=data["all_logits"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An interface and the traced graph of each of its functions."""

    interface: Interface
    exported: Mapping[str, ExportedProgram]


class Executor(Protocol):
    """Runs entries; keeps the states between steps."""

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs one entry on int64 arrays named and shaped as `Step`, and its inputs, by name; gives its outputs."""
        ...

    def reset(self) -> None:
        """Forgets all sequences."""
        ...

    def states(self) -> dict[str, np.ndarray]:
        """A copy of every state, by name."""
        ...

    def set_states(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites the states named, with arrays of their shapes and dtypes."""
        ...


def bound(call: Call, names: Sequence[str]) -> list[str]:
    """Full names of a function's weights or states at one call."""
    return [call.prefix + name for name in names]


def _values(items: Sequence[tuple[Sequence[int], str]]) -> tuple[Value, ...]:
    return tuple((tuple(shape), dtype) for shape, dtype in items)


def _specs(items: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=i["name"], shape=tuple(i["shape"]), dtype=i["dtype"]) for i in items)


def _entry(item: Mapping[str, Any]) -> Entry:
    calls = (Call(function=c["function"], prefix=c["prefix"], inputs=tuple(c["inputs"])) for c in item["calls"])
    return Entry(
        name=item["name"],
        num_tokens=item["num_tokens"],
        num_sequences=item["num_sequences"],
        calls=tuple(calls),
        outputs=item["outputs"],
        inputs=_specs(item["inputs"]),
    )
