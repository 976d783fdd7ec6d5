"""The slots of a bundle: which LoRAs fit into them, and how one is written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from bringup.compile.program.bind_weights import dtype_of
from bringup.compile.program.program import Executor, Interface, StateSpec
from bringup.compile.runtime.lora.weights import LoraFactors, LoraWeights, TaskId
from bringup.diagnostics import BringupError, Diagnostic
from bringup.graphs.core.lora import module_of

A, B = "_lora.a", "_lora.b"  # suffixes of a parameter's name: its slots
NO_SLOTS, NO_SLOT = "the bundle was compiled without slots for LoRAs", "the bundle has no slots for it"
INFINITE = "its factors have NaN or infinity"


@runtime_checkable
class LoraExecutor(Protocol):
    """An executor of a program with slots."""

    def write_slot(self, state: str, slot: int, row: np.ndarray) -> None:
        """Overwrites a row of a state of kind "lora", with an array of the row's shape and dtype."""
        ...


class Slots:
    """The slots of a program, by name of the parameter that a LoRA changes.

    `count` is the number of slots, 0 for a program without any; `rank` the largest rank; `slot_bytes` the size of one.
    """

    def __init__(self, interface: Interface) -> None:
        specs = {spec.name: spec for spec in interface.states if spec.kind == "lora"}
        parameters = [name.removesuffix(A) for name in specs if name.endswith(A)]
        self._specs = {name: (specs[f"{name}{A}"], specs[f"{name}{B}"]) for name in parameters}
        self.count = min((spec.shape[0] for spec in specs.values()), default=0)
        self.rank = min((spec.shape[-2] for spec in specs.values()), default=0)
        self.slot_bytes = sum(_row_bytes(spec) for spec in specs.values())

    def shapes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The shapes of the largest a and b of each parameter: [r, i] and [r, o], or [e, r, i] and [e, r, o]."""
        return {name: tuple(spec.shape[1:] for spec in specs) for name, specs in self._specs.items()}

    def check(self, weights: LoraWeights, name: TaskId) -> None:
        """Raises BU622, once for every reason, for a LoRA that does not fit the slots."""
        faults: dict[str, list[str]] = {}
        for parameter, factors in weights.factors.items():
            if why := self._misfit(parameter, factors):
                faults.setdefault(why, []).append(parameter)
        if not self.count:
            faults = {NO_SLOTS: [""]}
        elif not weights.factors:
            faults["it has no factors"] = [""]
        if faults:
            found = (self._refused(name, why, parameters, weights.factors) for why, parameters in faults.items())
            raise BringupError(*found)

    def write(self, executor: Executor, slot: int, weights: LoraWeights) -> None:
        """Writes a slot: zeros after a smaller rank, and in modules that the LoRA does not change."""
        assert isinstance(executor, LoraExecutor), "a target that compiles slots has an executor that fills them"
        for spec, row in self._rows(weights.factors):
            executor.write_slot(spec.name, slot, row)

    def _rows(self, factors: Mapping[str, LoraFactors]) -> Iterator[tuple[StateSpec, np.ndarray]]:
        for parameter, specs in self._specs.items():
            found = factors.get(parameter)
            for number, spec in enumerate(specs):
                row = np.zeros(spec.shape[1:], dtype_of(spec.dtype))
                if found is not None:
                    row[..., : found.rank, :] = found[number]
                yield spec, row

    def _misfit(self, parameter: str, factors: LoraFactors) -> str:
        """The reason why a parameter's factors do not fit; "" if they do."""
        specs = self._specs.get(parameter)
        if specs is None:
            return NO_SLOT
        if not factors.shape:
            return f"its factors have shapes {list(factors.a.shape)} and {list(factors.b.shape)}; they are no pair"
        if factors.shape != (shape := (*specs[0].shape[1:-2], specs[1].shape[-1], specs[0].shape[-1])):
            return f"its factors are for {list(factors.shape)}, but the parameter is {list(shape)}"
        if factors.rank > self.rank:
            return f"its rank is {factors.rank}, and the bundle's slots have {self.rank}"
        dtype = specs[0].dtype
        with np.errstate(over="ignore"):  # a value that the dtype of slots does not hold is infinity there
            finite = all(np.isfinite(array.astype(dtype_of(dtype))).all() for array in factors)
        return "" if finite else f"{INFINITE} in {dtype}"

    def _refused(self, name: TaskId, why: str, parameters: list[str], factors: Mapping[str, LoraFactors]) -> Diagnostic:
        more = f" and {len(parameters) - 1} more" if len(parameters) > 1 else ""
        of = f" for `{parameters[0]}`{more}" if parameters[0] else ""
        if why == NO_SLOTS and not factors:  # a request names the LoRA alone
            help = "compile with --lora-dir DIR, the folder of the LoRA"
        elif why.startswith(INFINITE):
            help = "if the LoRA's own values are finite, compile with a --dtype that holds them, such as float32"
        elif why in (NO_SLOTS, NO_SLOT) or why.startswith("its rank"):
            valid = {parameter: each for parameter, each in factors.items() if each.shape}
            rank = max((self.rank, *(each.rank for each in valid.values())))
            modules = {module_of(parameter).rpartition(".")[2] for parameter in (*self._specs, *valid)}
            help = f"compile with --max-lora-rank {rank} --lora-target-modules {','.join(sorted(modules))}"
        else:
            help = "is it a LoRA of this base model? `bringup lora check` compares its files with a checkpoint"
        return Diagnostic(
            code="BU622",
            message=f"the LoRA `{name}` does not fit the bundle{of}: {why}",
            help=help,
            parameter=parameters[0],
        )


def _row_bytes(spec: StateSpec) -> int:
    return math.prod(spec.shape[1:]) * dtype_of(spec.dtype).itemsize
