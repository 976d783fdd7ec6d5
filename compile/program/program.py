"""A Program: the result of export, for every target. Plain data except for `Program.exported`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from bringup.spec import Shape

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram


Value = tuple[Shape, str]  # what passes between stages: its shape and dtype
LORA_SLOTS = "lora_slots"  # the input of an entry that has the slot of each sequence's LoRA, int64 [B]; -1 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape and dtype (a numpy / ml_dtypes name) of a tensor bound by name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec(TensorSpec):
    """A state. `kind`: "paged" has a row for each slot of the cache blocks, "sequence" a row for each sequence.

    "ring" has as many rows for each sequence as the first size over `Interface.num_rows`, one ring after the other.
    "lora" has a row for each slot of a LoRA: what the host writes there stays, and no step changes it.
    """

    kind: str = "paged"


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

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"values": _listed(self.values), "results": _listed(self.results)}

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
class EntryPoint:
    """What an entry takes in: up to N tokens of up to B sequences.

    `decode` and `contiguous` are those of `Step`: one token a sequence, N = B; one sequence, its blocks in order.
    """

    num_tokens: int
    num_sequences: int
    decode: bool
    contiguous: bool

    @property
    def point_name(self) -> str:
        """`prefill_32`, `decode`; with the number of sequences where there are several: `prefill_32_4`, `decode_4`."""
        name = "decode" if self.decode else f"prefill_{self.num_tokens}"
        return name if self.num_sequences == 1 else f"{name}_{self.num_sequences}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(EntryPoint):
    """A straight line of calls over N tokens of B sequences.

    Its values are `inputs`, which are given besides the step, and then what its calls give. `outputs` are the values
    that it gives, by name: "logits" always. Logits have a row for each sequence (decode, or the last token of each),
    or for each token (`Interface.all_logits`).
    """

    name: str
    calls: tuple[Call, ...]
    outputs: Mapping[str, int]
    inputs: tuple[TensorSpec, ...] = ()

    @property
    def token_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that have a row for each token."""
        return tuple(spec for spec in self.inputs if spec.name != LORA_SLOTS)

    @property
    def chooses_loras(self) -> bool:
        """Whether it takes the slot of each sequence's LoRA."""
        return any(spec.name == LORA_SLOTS for spec in self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """All that an executor needs beside the code; plain data, kept in a bundle as JSON.

    `weights` are given by name, tables such as rope's among them; `states` the executor zeroes and keeps.
    `max_blocks` bounds P, the second size of `block_table`: the blocks of `block_size` rows of the longest sequence.
    The paged states have `num_blocks` blocks, the per-sequence states `num_rows` rows; the last of each is for padding.
    `rewindable`: how many of a sequence's last tokens can be taken back while the tokens before stay in the states;
    None for any number. Where more are taken back, all tokens that remain are computed again.
    """

    functions: tuple[Function, ...]
    entries: tuple[Entry, ...]
    weights: tuple[TensorSpec, ...]
    states: tuple[StateSpec, ...]
    max_blocks: int
    all_logits: bool
    block_size: int
    num_blocks: int
    num_rows: int
    rewindable: int | None = None

    @property
    def max_batch_size(self) -> int:
        """The largest number of sequences that the states hold at their full length, and that a step takes in."""
        return self.num_rows - 1

    @property
    def sequence_states(self) -> tuple[StateSpec, ...]:
        """The states that steps change; the others are slots of LoRAs."""
        return tuple(state for state in self.states if state.kind != "lora")

    def entry(self, name: str) -> Entry:
        """Raises StopIteration for a name that no entry has."""
        return next(entry for entry in self.entries if entry.name == name)

    def prefill_sizes(self, num_sequences: int = 1) -> list[int]:
        """The numbers of tokens of the prefill entries for so many sequences, in order."""
        found = (e.num_tokens for e in self.entries if not e.decode and e.num_sequences == num_sequences)
        return sorted(found)

    def function(self, name: str) -> Function:
        return next(f for f in self.functions if f.name == name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"functions": [function.to_json() for function in self.functions]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Interface:
        return cls(
            functions=tuple(map(Function.from_json, data["functions"])),
            entries=tuple(_entry(e) for e in data["entries"]),
            weights=_specs(data["weights"]),
            states=tuple(
                StateSpec(name=s["name"], shape=tuple(s["shape"]), dtype=s["dtype"], kind=s["kind"])
                for s in data["states"]
            ),
            max_blocks=data["max_blocks"],
            all_logits=data["all_logits"],
            block_size=data["block_size"],
            num_blocks=data["num_blocks"],
            num_rows=data["num_rows"],
            rewindable=data["rewindable"],
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
        """Forgets all sequences. Slots of LoRAs stay as they are."""
        ...

    def states(self) -> dict[str, np.ndarray]:
        """A copy of every state, by name."""
        ...

    def set_states(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites the states named, with arrays of their shapes and dtypes."""
        ...


class Draw(NamedTuple):
    """How a token is drawn: settings as of `runtime.sampling.next_token`, and a number in [0, 1) that decides.

    At temperature 0 the likeliest token is taken, and `uniform` is not used.
    """

    temperature: float
    top_p: float
    uniform: float


@runtime_checkable
class TokenExecutor(Protocol):
    """An executor that draws tokens where it computes logits, and can go on with them by itself."""

    def can_draw(self, entry: str) -> bool:
        """Whether `draw` runs this entry: one of decode that gives nothing but logits."""
        ...

    def can_continue(self, entry: str, draws: Sequence[Draw]) -> bool:
        """Whether the latest step of this entry was a `draw`, so that one without a step can follow, by these draws."""
        ...

    def draw(
        self, entry: str, step: Mapping[str, np.ndarray] | None, draws: Sequence[Draw], *, ahead: bool = False
    ) -> list[int]:
        """Runs a decode entry, and draws a token for each of its first sequences: as many as there are `draws`.

        -1 stands for a token of a sequence whose largest logit is NaN, -2 where it is infinite. Without a `step` each
        sequence of the latest one takes in the token that was drawn for it, in the blocks that it had. With `ahead` the
        next call is likely to be such a one, by the same draws: it may be computed already, and if none comes, the
        states have a row more of each sequence than anybody knows of.
        """
        ...


@runtime_checkable
class Closeable(Protocol):
    """An executor that holds what the process does not give back by itself: memory of a device."""

    def close(self) -> None:
        """Gives it back; no step follows. A second call does nothing."""
        ...


def close_executor(executor: Executor) -> None:
    """Closes an executor that can be closed."""
    if isinstance(executor, Closeable):
        executor.close()


def bound(call: Call, names: Sequence[str]) -> list[str]:
    """Full names of a function's weights or states at one call."""
    return [call.prefix + name for name in names]


def _values(items: Sequence[Mapping[str, Any]]) -> tuple[Value, ...]:
    return tuple((tuple(item["shape"]), item["dtype"]) for item in items)


def _listed(values: Sequence[Value]) -> list[dict[str, Any]]:
    return [{"shape": shape, "dtype": dtype} for shape, dtype in values]


def _specs(items: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=i["name"], shape=tuple(i["shape"]), dtype=i["dtype"]) for i in items)


def _entry(item: Mapping[str, Any]) -> Entry:
    calls = (Call(function=c["function"], prefix=c["prefix"], inputs=tuple(c["inputs"])) for c in item["calls"])
    return Entry(
        name=item["name"],
        num_tokens=item["num_tokens"],
        num_sequences=item["num_sequences"],
        decode=item["decode"],
        contiguous=item["contiguous"],
        calls=tuple(calls),
        outputs=item["outputs"],
        inputs=_specs(item["inputs"]),
    )
