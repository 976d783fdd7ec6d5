# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""One step of a graph, run by torch, whose modules can be run again on a reference's activations."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bringup.compile.bisect.eager import Eager
from bringup.compile.bisect.rows import alike, first_rows, is_float, rows_like, with_rows
from bringup.compile.parity.parity import relative
from bringup.compile.parity.reference import INPUT

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Seen:
    """A module's input (`given`), output, and output for the reference's input (`alone`): float32 [count, …].

    `given` and `alone` are None if the reference has no input of that size, except `alone` of a module of token ids.
    """

    name: str
    output: np.ndarray
    given: np.ndarray | None
    alone: np.ndarray | None


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a module. `forced`: by index of an argument, the reference's input for it, [count, …].

    `complete`: the reference has every tensor argument that other modules compute for this one.
    """

    args: tuple[Any, ...]
    output: Any
    forced: Mapping[int, np.ndarray] | None
    complete: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """The errors in a repeated run, as `relative`: of the `inputs` of the modules inside, and of the `output`.

    `output` is None if the reference has none.
    """

    inputs: Mapping[str, float]
    output: float | None


class Observation:
    """One step of `eager`, after the earlier steps of its run.

    `theirs` has the names of `record`, for our modules: [count, …] for the step's tokens without padding. `logits`,
    [count, V], are the reference's. `seen` has each module that the reference has too, in the order in which modules
    finish; `odd` the shapes of the outputs that the reference has in another shape. The output of a layer with several
    results is the graph's `hidden_state`; that of any other module with several results is the first.
    """

    def __init__(
        self,
        eager: Eager,
        step: Mapping[str, np.ndarray],
        theirs: Mapping[str, np.ndarray],
        *,
        decode: bool = False,
        logits: np.ndarray | None = None,
    ) -> None:
        self._eager, self._step, self._decode, self._theirs = eager, step, decode, theirs
        self._logits = logits
        self._modules = {name: module for name, module in eager.module.named_modules() if name}
        self._calls: dict[str, _Call] = {}
        self._shared: list[Tensor] = []  # that all layers get, such as the rows of rope
        self._trials: dict[tuple[str, frozenset[str]], Trial] = {}
        self._excluded: frozenset[str] = frozenset()
        self.odd: Shapes = {}
        self._before = eager.copy_of_states()
        self._observe()
        self._after = eager.copy_of_states()

    def _observe(self) -> None:
        module, carried = self._eager.module, self._eager.module.carried
        layers = {id(layer) for layer in module.layers}

        def before(layer: Any, args: tuple[Any, ...]) -> None:
            self._shared += [arg for arg in args[carried:] if isinstance(arg, Tensor)]

        def watch(name: str) -> Any:
            def hook(part: Any, args: tuple[Any, ...], output: Any) -> None:
                several = isinstance(output, tuple) and len(output) > 1
                if several and id(part) in layers:
                    output = module.hidden_state(*output)
                self._calls.pop(name, None)
                if self._fits(name, output):
                    # with several results, it is not known which of its inputs is the reference's input
                    forced, complete = (None, False) if several else self._forced(name, args)
                    self._calls[name] = _Call(args, output, forced, complete)

            return hook

        with _hooks() as hooks:
            hooks += [layer.register_forward_pre_hook(before) for layer in module.layers]
            hooks += [part.register_forward_hook(watch(name)) for name, part in self._modules.items()]
            self._eager(self._step, decode=self._decode)

    def _fits(self, name: str, output: Any) -> bool:
        """Whether the reference has an output of that size for the module."""
        wanted = self._theirs.get(name)
        if wanted is None:
            return False
        ours = first_rows(output, len(wanted))
        if ours is None or ours[0].size != wanted[0].size:
            self.odd[name] = () if ours is None else ours.shape
            return False
        return True

    def _forced(self, name: str, args: tuple[Any, ...]) -> tuple[dict[int, np.ndarray] | None, bool]:
        """The reference's inputs by index of argument, and whether they are all; None without the first of them."""
        if not any(is_float(arg) for arg in args):
            return {}, True  # its inputs are token ids, which are equal
        first, count = self._theirs.get(name + INPUT), len(self._theirs[name])
        x = first_rows(args[:1], count)
        if first is None or x is None or x.size != first.size:
            return None, False
        found, complete = {0: first}, True
        further = list(_further(self._theirs, name))
        for index, arg in enumerate(args[1:], 1):
            if not isinstance(arg, Tensor) or any(arg is other for other in self._shared):
                continue
            matching = alike(arg, further)
            if len(matching) == 1:
                found[index] = matching[0]
            else:
                complete = False
        return found, complete

    @cached_property
    def seen(self) -> list[Seen]:
        """See the class."""
        found: list[Seen] = []
        for name, call in self._calls.items():
            wanted = self._theirs[name]
            given = alone = None
            output = rows_like(call.output, wanted)
            if call.forced is not None:
                given = rows_like(call.args[0], call.forced[0]) if call.forced else None
                alone = rows_like(self._again(name), wanted) if call.forced else output
            found.append(Seen(name, output, given, alone))
        return found

    def exclude(self, names: Collection[str]) -> None:
        """Leaves modules out of `inside`."""
        self._excluded = frozenset(names)

    def inside(self, parent: str) -> list[str]:
        """The outermost modules inside `parent` ("" is the graph) whose inputs and output the reference has."""
        found: list[str] = []
        for name in self._modules:  # a module precedes its parts
            call = self._calls.get(name)
            testable = call is not None and call.forced is not None and call.complete and name not in self._excluded
            inner = not parent or name.startswith(f"{parent}.")
            if testable and inner and not any(name.startswith(f"{other}.") for other in found):
                found.append(name)
        order = list(self._calls)
        return sorted(found, key=order.index)

    def rope_error(self, name: str) -> float:
        """The error of the cosines of rope that a module gets, compared with those of the reference; 0 if not known.

        They are known if all layers get one pair of float tensors, [N, pairs], and the reference has one module of
        rope. It returns each cosine once or twice, in an order of its own, so the values of a row are sorted.
        """
        rows = {id(tensor): tensor for tensor in self._shared if tensor.is_floating_point()}
        names = [key for key in self._theirs if "rotary" in key.rpartition(".")[2] and INPUT not in key]
        call = self._calls.get(name)
        if len(rows) != 2 or len(names) != 1 or call is None:
            return 0.0
        wanted = self._theirs[names[0]]
        ours, theirs = next(iter(rows.values())), np.sort(wanted.reshape(len(wanted), -1))
        if not any(ours is arg for arg in call.args) or ours.ndim != 2 or len(ours) < len(theirs):
            return 0.0
        times = theirs.shape[1] // ours.shape[1]
        if times not in (1, 2) or theirs.shape[1] != times * ours.shape[1]:
            return 0.0
        return relative(np.sort(ours[: len(theirs)].float().numpy()), theirs[:, ::times])

    def trial(self, parent: str, replaced: Collection[str]) -> Trial:
        """`parent` on the reference's inputs, where the modules `replaced` inside it return the reference's outputs."""
        key = parent, frozenset(replaced)
        if key not in self._trials:
            self._trials[key] = self._tried(parent, replaced)
        return self._trials[key]

    def _tried(self, parent: str, replaced: Collection[str]) -> Trial:
        inputs: dict[str, float] = {}

        def before(name: str) -> Any:
            def hook(module: Any, args: tuple[Any, ...]) -> None:
                forced = self._calls[name].forced or {}
                errors = [relative(rows_like(args[index], wanted), wanted) for index, wanted in forced.items()]
                inputs[name] = max(errors, default=0.0)

            return hook

        def after(name: str) -> Any:
            def hook(module: Any, args: tuple[Any, ...], output: Any) -> Any:
                return with_rows(output, self._theirs[name])

            return hook

        with _hooks() as hooks:
            for name in self.inside(parent):
                hooks.append(self._modules[name].register_forward_pre_hook(before(name)))
                if name in replaced:
                    hooks.append(self._modules[name].register_forward_hook(after(name)))
            output = self._again(parent)
        wanted = self._theirs[parent] if parent else self._logits
        return Trial(inputs, None if wanted is None else relative(rows_like(output, wanted), wanted))

    def _again(self, name: str) -> Any:
        """The output of a module for the reference's inputs, or of the graph; states are those before the step."""
        states = [state for state in self._before if not name or state.startswith(f"{name}.")]
        self._eager.restore({state: self._before[state] for state in states})
        try:
            if not name:
                return self._eager(self._step, decode=self._decode)
            call = self._calls[name]
            args = list(call.args)
            for index, wanted in (call.forced or {}).items():
                args[index] = with_rows(args[index], wanted)
            with torch.no_grad():
                return self._modules[name].forward(*args)
        finally:
            self._eager.restore({state: self._after[state] for state in states})


@contextmanager
def _hooks() -> Generator[list[Any]]:
    hooks: list[Any] = []
    try:
        yield hooks
    finally:
        for hook in hooks:
            hook.remove()


def _further(theirs: Mapping[str, np.ndarray], name: str) -> Iterator[np.ndarray]:
    """A module's inputs after the first."""
    number = 2
    while (key := f"{name}{INPUT}{number}") in theirs:
        yield theirs[key]
        number += 1
