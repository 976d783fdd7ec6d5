"""A Program: the result of export, for every target. Plain data except for `Program.exported`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from bringup.spec import Shape

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram


Value = tuple[Shape, str]  # shape and dtype of a value between stages
LORA_SLOTS = "lora_slots"  # the input of an entry with the slot of each sequence's LoRA, int64 [B]; -1 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape and dtype (a numpy / ml_dtypes name) of a tensor bound by name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec(TensorSpec):
    """A state. `kind` defines its first axis:

    - "paged": a row for each slot of the cache blocks.
    - "sequence": a row for each sequence.
    - "ring": one ring after the other, each with (first size / `Interface.num_rows`) rows of a sequence.
    - "lora": a row for each slot of a LoRA, which the host writes and no step changes.
    """

    kind: str = "paged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One traced stage, shared by all its calls.

    Its arguments are ({weight: tensor}, {state: tensor}, (value, ...), tuple(Step)), flattened in that order; it
    returns a tuple of results. It changes the states `updates` in place. `Call.full_name` extends their names.
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
        names = {key: tuple(data[key]) for key in ("weights", "states", "updates")}
        return cls(name=data["name"], values=_values(data["values"]), results=_values(data["results"]), **names)


class Binding:
    """A call's weights and states: those below `prefix`, or in `borrowed`, states of an earlier layer (`State.of`)."""

    __slots__ = ()
    prefix: str
    borrowed: Mapping[str, str]

    def full_name(self, name: str) -> str:
        """The full name of one of the function's weights or states."""
        return self.borrowed.get(name) or self.prefix + name

    def bound(self, names: Iterable[str]) -> list[str]:
        """The full names of the function's weights or states."""
        return [self.full_name(name) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Binding):
    """A use of a function; `inputs` index the entry's values."""

    function: str
    prefix: str
    inputs: tuple[int, ...]
    borrowed: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """The sizes of an entry: up to N tokens of up to B sequences.

    `decode`, `contiguous` and `proposals` are those of `Step`: one token per sequence, N = B; one sequence, with its
    blocks in order; recurrent states are those before proposals.
    """

    num_tokens: int
    num_sequences: int
    decode: bool
    contiguous: bool
    proposals: bool = False

    @property
    def point_name(self) -> str:
        """`prefill_32`, `decode`; with the number of sequences if there are several: `prefill_32_4`, `decode_4`."""
        name = "decode" if self.decode else f"prefill_{self.num_tokens}"
        return name if self.num_sequences == 1 else f"{name}_{self.num_sequences}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(EntryPoint):
    """A sequence of calls on N tokens of B sequences.

    Its values are `inputs`, which are passed besides the step, followed by the results of its calls. `outputs` maps
    names of outputs to values; "logits" is always among them. Logits have a row for each sequence (decode, or the last
    token of each), or for each token (`Interface.all_logits`).
    """

    name: str
    calls: tuple[Call, ...]
    outputs: Mapping[str, int]
    inputs: tuple[TensorSpec, ...] = ()

    @property
    def token_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs with a row for each token."""
        return tuple(spec for spec in self.inputs if spec.name != LORA_SLOTS)

    @property
    def chooses_loras(self) -> bool:
        """Whether it has the input `LORA_SLOTS`."""
        return any(spec.name == LORA_SLOTS for spec in self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Everything that an executor needs besides the code; plain data, stored in a bundle as JSON.

    `weights` are bound by name, including tables such as those of RoPE; the executor allocates and zeroes `states`.
    `max_blocks` bounds P, the second size of `block_table`: the blocks, of `block_size` rows, of the longest sequence.
    The paged states have `num_blocks` blocks, the per-sequence states `num_rows` rows; the last of each is for padding.
    `rewindable`: how many of a sequence's last tokens can be removed while the tokens before stay in the states; None
    for any number. If more are removed, all remaining tokens are computed again.
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
        """The largest number of sequences in a step, for which the states have room at their full length."""
        return self.num_rows - 1

    @property
    def recurrent(self) -> bool:
        """Whether it has states that each token of a sequence changes."""
        return any(state.kind == "sequence" for state in self.states)

    @property
    def sequence_states(self) -> tuple[StateSpec, ...]:
        """The states that steps change; the others are slots of LoRAs."""
        return tuple(state for state in self.states if state.kind != "lora")

    def entry(self, name: str) -> Entry:
        """The entry of a name. Raises StopIteration for an unknown name."""
        return next(entry for entry in self.entries if entry.name == name)

    def prefill_sizes(self, num_sequences: int = 1) -> list[int]:
        """The numbers of tokens of the prefill entries for `num_sequences` sequences, in increasing order."""
        found = (e.num_tokens for e in self.entries if not e.decode and e.num_sequences == num_sequences)
        return sorted(found)

    def function(self, name: str) -> Function:
        """The function of a name. Raises StopIteration for an unknown name."""
        return next(f for f in self.functions if f.name == name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"functions": [function.to_json() for function in self.functions]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Interface:
        kinds, specs = (state["kind"] for state in data["states"]), _specs(data["states"])
        states = (StateSpec(kind=kind, **asdict(spec)) for kind, spec in zip(kinds, specs, strict=True))
        plain = ("max_blocks", "all_logits", "block_size", "num_blocks", "num_rows", "rewindable")
        return cls(
            functions=tuple(map(Function.from_json, data["functions"])),
            entries=tuple(_entry(e) for e in data["entries"]),
            weights=_specs(data["weights"]),
            states=tuple(states),
            **{key: data[key] for key in plain},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An interface and the traced graph of each of its functions."""

    interface: Interface
    exported: Mapping[str, ExportedProgram]


class Executor(Protocol):
    """Runs entries; owns the states between steps."""

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs one entry on the int64 arrays of `Step` and the entry's inputs, by name; returns its outputs by name."""
        ...

    def reset(self) -> None:
        """Removes all sequences. Slots of LoRAs are unchanged."""
        ...

    def states(self) -> dict[str, np.ndarray]:
        """A copy of every state, by name."""
        ...

    def set_states(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites states by name, with arrays of their shapes and dtypes."""
        ...


class Draw(NamedTuple):
    """The settings of `runtime.sampling.next_token` for one token, and a uniform random number in [0, 1).

    At temperature 0 the most likely token is selected, and the others are not used."""

    temperature: float
    top_p: float
    uniform: float
    top_k: int = 0


@runtime_checkable
class TokenExecutor(Protocol):
    """An executor that samples tokens on its device, and can run the next step on them without the host."""

    def can_draw(self, entry: str) -> bool:
        """Whether `draw` supports this entry: a decode entry with no output but logits."""
        ...

    def can_continue(self, entry: str, draws: Sequence[Draw]) -> bool:
        """Whether the last step of this entry was a `draw`, so that one without a `step` and these draws can follow."""
        ...

    def draw(
        self, entry: str, step: Mapping[str, np.ndarray] | None, draws: Sequence[Draw], *, ahead: bool = False
    ) -> list[int]:
        """Runs a decode entry and samples a token for each of its first `len(draws)` sequences.

        A token is -1 if the largest logit of its sequence is NaN, -2 if it is infinite. Without a `step`, each sequence
        of the last step gets the token that was sampled for it, in its current blocks. `ahead`: the next call will
        probably be without a step and with the same draws. It may then be computed in advance; if no such call follows,
        the states have one additional row of each sequence.
        """
        ...


@runtime_checkable
class Closeable(Protocol):
    """An executor with resources that must be freed explicitly: memory of a device."""

    def close(self) -> None:
        """Frees them; no step may follow. A second call has no effect."""
        ...


def close_executor(executor: Executor) -> None:
    """Closes an executor that is `Closeable`."""
    if isinstance(executor, Closeable):
        executor.close()


def _values(items: Sequence[Mapping[str, Any]]) -> tuple[Value, ...]:
    return tuple((tuple(item["shape"]), item["dtype"]) for item in items)


def _listed(values: Sequence[Value]) -> list[dict[str, Any]]:
    return [{"shape": shape, "dtype": dtype} for shape, dtype in values]


def _specs(items: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=i["name"], shape=tuple(i["shape"]), dtype=i["dtype"]) for i in items)


def _entry(item: Mapping[str, Any]) -> Entry:
    names = ("function", "prefix", "borrowed")
    calls = (Call(inputs=tuple(c["inputs"]), **{name: c[name] for name in names}) for c in item["calls"])
    plain = ("name", "num_tokens", "num_sequences", "decode", "contiguous", "proposals", "outputs")
    return Entry(calls=tuple(calls), inputs=_specs(item["inputs"]), **{key: item[key] for key in plain})
