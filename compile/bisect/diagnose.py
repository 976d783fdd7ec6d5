"""The place where a target departs from torch: an operation of the compiled program, or only the complete program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from bringup.compile.bisect.calls import CallError, compare_calls
from bringup.compile.bisect.eager import Eager
from bringup.compile.bisect.executors import Lower, lowered
from bringup.compile.bisect.findings import call_departs, op_departs, whole_departs
from bringup.compile.bisect.ops import Found, Operations
from bringup.compile.bisect.replay import CallRun, readable, run_calls
from bringup.compile.parity.feeds import Feed
from bringup.compile.parity.parity import STAGE_TOLERANCE
from bringup.compile.parity.rounding import near
from bringup.compile.program.program import Executor, Interface, Program
from bringup.compile.targets.selection import Selection
from bringup.compile.targets.torch_executor import TorchExecutor
from bringup.diagnostics import Diagnostic


@dataclass(slots=True)
class Departure:
    """The result of a bisection between torch and a target. `calls` are those of the departing step's entry."""

    feed: Feed
    what: str
    calls: list[CallError] = field(default_factory=list[CallError])
    found: Found | None = None
    finding: Diagnostic | None = None


Arrays = Mapping[str, np.ndarray]
Scaled = Callable[[Executor], Collection[str]]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step: the name of what departs in it, torch's states before it, and the logits and states after it, by torch
    (`wanted`) and in float32 (`exact`).
    """

    feed: Feed
    what: str
    before: Arrays
    wanted: Arrays
    exact: Arrays

    def departing(self, given: Arrays, dtype: str) -> str:
        """The name of the first array of `given` that departs from torch's; "" if none does."""
        return next(
            (name for name, array in self.wanted.items() if not near(given[name], array, self.exact[name], dtype)), ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """A program, its executor on a target, and the steps that the executor ran.

    `exact` is the graph in float32. `scaled` returns, for an executor, the entries of these steps that have an
    operation that is wrong on average; `suspects` are those of `executor`. `device` is the device of
    `executor`, None for the target's default.
    """

    program: Program
    weights: Mapping[str, np.ndarray]
    executor: Executor
    feeds: Sequence[Feed]
    selection: Selection
    device: str | None
    dtype: str
    exact: Eager
    scaled: Scaled
    suspects: Collection[str]

    def run(self) -> Departure | None:
        """Repeats the steps with torch and with `executor`, and locates the operation in the first that departs.

        A step departs if its logits or the states after it do; in 16 bits, if their error compared with `exact` exceeds
        what torch's rounding explains. If none departs, in 16 bits every operation of every entry is compared with
        torch's, also on average. None if nothing departs.
        """
        steps = self._steps()
        departing = next((step for step in steps.values() if step.what), None)
        if departing is not None:
            return self._followed(departing)
        return None if self.dtype == "float32" else self._averaged(steps)

    def _followed(self, departing: _Step) -> Departure:
        feed, lower, target = departing.feed, self._lower, self.selection.name
        entry = self.program.interface.entry(feed.entry)
        runs = self._runs(departing)
        departure = Departure(feed, departing.what)
        departure.calls = compare_calls(self.program, entry, runs, feed.step, departing.before, lower)
        worst = STAGE_TOLERANCE[self.dtype]
        first = next((index for index, call in enumerate(departure.calls) if not call.worst <= worst), None)
        if first is None:
            departure.finding = self._whole(departing)
            return departure
        operations = Operations(self.program, entry, runs[first], feed.step, lower)
        call = departure.calls[first]
        departure.found = operations.alone() or operations.together(worst) or operations.left(call, worst)
        departure.finding = (
            op_departs(departure.found, target) if departure.found else call_departs(call, entry.name, target)
        )
        return departure

    def _averaged(self, steps: Mapping[str, _Step]) -> Departure | None:
        """Compares the operations of each entry's first step, in one call of each function; `suspects` first."""
        target = self.selection.name
        ordered = sorted(steps.values(), key=lambda step: step.feed.entry not in self.suspects)
        parts = {step.feed.entry: self._parts(step) for step in ordered}
        for step in ordered:
            for operations in parts[step.feed.entry]:
                if found := operations().alone(averaged=True):
                    return Departure(step.feed, "", found=found, finding=op_departs(found, target))
        if not self.suspects:
            return None
        fresh = self._lower(self.program)
        if not self.scaled(fresh):
            return Departure(ordered[0].feed, "", finding=_other_bundle(ordered[0].feed.entry, target))
        for step in ordered:
            for operations in parts[step.feed.entry] if step.feed.entry in self.suspects else ():
                if found := operations().one_by_one(self.dtype):
                    return Departure(step.feed, "", found=found, finding=op_departs(found, target))
        return Departure(ordered[0].feed, "", finding=_across_calls(ordered[0].feed.entry, target))

    def _parts(self, step: _Step) -> list[Callable[[], Operations]]:
        """The operations of the first call of each function; created when needed, because they hold every result."""
        entry = self.program.interface.entry(step.feed.entry)
        firsts = {run.call.function: run for run in reversed(self._runs(step))}
        return [partial(Operations, self.program, entry, run, step.feed.step, self._lower) for run in firsts.values()]

    def _runs(self, step: _Step) -> list[CallRun]:
        entry = self.program.interface.entry(step.feed.entry)
        return run_calls(self.program, entry, step.feed.step, self.weights, step.before)

    @property
    def _lower(self) -> Lower:
        return lowered(self.selection, self.weights, self.device)

    def _steps(self) -> dict[str, _Step]:
        """The first step of each entry; or, if a step departs, only the first such step."""
        torch = TorchExecutor(self.program.exported, self.program.interface, self.weights)
        found: dict[str, _Step] = {}
        run = -1
        for feed in self.feeds:
            if feed.run != run:
                run = feed.run
                torch.reset()
                self.executor.reset()
                self.exact.reset()
            before = torch.states()
            wanted = _results(torch, feed)
            right = wanted if self.dtype == "float32" else _of_graph(self.exact, feed, self.program.interface)
            step = _Step(feed, "", before, wanted, right)
            if what := step.departing(_results(self.executor, feed), self.dtype):
                return {feed.entry: replace(step, what=what)}
            found.setdefault(feed.entry, step)
        return found

    def _whole(self, step: _Step) -> Diagnostic:
        """The finding if every call agrees when compiled separately: an error across calls, or another program in
        the bundle.
        """
        fresh = self._lower(self.program)
        fresh.set_states(step.before)
        of_bundle = not step.departing(_results(fresh, step.feed), self.dtype)
        return (_other_bundle if of_bundle else _across_calls)(step.feed.entry, self.selection.name)


def _other_bundle(entry: str, target: str) -> Diagnostic:
    message = f"the program of the bundle departs in `{entry}`; compiled again for `{target}`, the graph does not"
    return whole_departs(
        message, "compile it again: this bundle was compiled by another version of the graph or of a tool"
    )


def _across_calls(entry: str, target: str) -> Diagnostic:
    message = f"every call of `{entry}` agrees with torch when compiled separately, together they do not"
    return whole_departs(
        message, f"`{target}` is wrong across calls: compile with --dump-dir DIR and report it with the files"
    )


def _results(executor: Executor, feed: Feed) -> dict[str, np.ndarray]:
    """The logits of a step, without padding, and the part of every state that a later step can read."""
    logits = executor.step(feed.entry, feed.step)["logits"]
    states = {name: readable(state) for name, state in executor.states().items()}
    return {"logits": logits[: len(feed.logits)], **states}


def _of_graph(exact: Eager, feed: Feed, interface: Interface) -> dict[str, np.ndarray]:
    """The same, computed by the graph in float32."""
    count = feed.end - feed.first
    logits = exact(feed.step, decode=feed.decode).float().numpy()[count - len(feed.logits) : count]
    buffers = {name: buffer.numpy() for name, buffer in exact.module.named_buffers()}
    return {"logits": logits, **{spec.name: readable(buffers[spec.name]) for spec in interface.states}}
