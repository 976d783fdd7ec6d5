"""Where a verification departs: weights, a module of the graph, or an operation of the compiled program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bringup.compile.bisect.calls import CallError, compare_calls
from bringup.compile.bisect.eager import Eager
from bringup.compile.bisect.executors import lowered
from bringup.compile.bisect.modules import misfed
from bringup.compile.bisect.ops import Found, Operations
from bringup.compile.bisect.replay import readable, run_calls
from bringup.compile.parity.feeds import Feed
from bringup.compile.parity.parity import STAGE_TOLERANCE, Layer, relative
from bringup.compile.parity.rounding import near
from bringup.compile.program.program import Executor, Interface, Program
from bringup.compile.targets.selection import Selection
from bringup.compile.targets.torch_executor import TorchExecutor
from bringup.diagnostics import Diagnostic
from bringup.spec import Site


@dataclass(slots=True)
class Departure:
    """What a bisection between torch and a target found. `calls` are those of the departing step's entry."""

    feed: Feed
    what: str
    calls: list[CallError] = field(default_factory=list[CallError])
    found: Found | None = None
    finding: Diagnostic | None = None


def bisect(
    program: Program,
    weights: Mapping[str, np.ndarray],
    executor: Executor,
    feeds: Sequence[Feed],
    *,
    selection: Selection,
    dtype: str,
    exact: Eager,
) -> Departure | None:
    """Repeats the steps by torch and by `executor`, and follows the first that departs down to an operation.

    A step departs when its logits or the states it leaves do; in 16 bits, when they are further from those of `exact`,
    the graph in float32, than torch's rounding explains. None when no step does.
    """
    torch = TorchExecutor(program.exported, program.interface, weights)
    departing = _first_step(torch, executor, feeds, dtype, exact, program.interface)
    if departing is None:
        return None
    entry = next(entry for entry in program.interface.entries if entry.name == departing.feed.entry)
    runs = run_calls(program, entry, departing.feed.step, weights, departing.before)
    lower, target = lowered(selection, weights), selection.name
    departure = Departure(departing.feed, departing.what)
    departure.calls = compare_calls(program, entry, runs, departing.feed.step, departing.before, lower)
    worst = STAGE_TOLERANCE[dtype]
    first = next((index for index, call in enumerate(departure.calls) if not call.worst <= worst), None)
    if first is None:
        departure.finding = _whole(lower(program), departing, target, dtype)
        return departure
    operations = Operations(program, entry, runs[first], departing.feed.step, lower)
    departure.found = operations.alone() or operations.together(worst) or operations.left(departure.calls[first], worst)
    departure.finding = (
        _op(departure.found, target) if departure.found else _call(departure.calls[first], entry.name, target)
    )
    return departure


Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step, what of it departs, torch's states before it, and what it gives: logits and states, by torch and in
    float32.
    """

    feed: Feed
    what: str
    before: Arrays
    wanted: Arrays
    exact: Arrays

    def departing(self, given: Arrays, dtype: str) -> str:
        """The first of `given` that is not what torch gives; "" when all are."""
        return next(
            (name for name, array in self.wanted.items() if not near(given[name], array, self.exact[name], dtype)), ""
        )


def _first_step(
    torch: TorchExecutor,
    executor: Executor,
    feeds: Sequence[Feed],
    dtype: str,
    exact: Eager,
    interface: Interface,
) -> _Step | None:
    """The first step that departs."""
    run = -1
    for feed in feeds:
        if feed.run != run:
            run = feed.run
            torch.reset()
            executor.reset()
            exact.reset()
        before = torch.states()
        wanted = _results(torch, feed)
        right = wanted if dtype == "float32" else _of_graph(exact, feed, interface)
        step = _Step(feed, "", before, wanted, right)
        if what := step.departing(_results(executor, feed), dtype):
            return replace(step, what=what)
    return None


def _results(executor: Executor, feed: Feed) -> dict[str, np.ndarray]:
    """The logits of a step that count, and every state it leaves, as far as a step can read it."""
    logits = executor.step(feed.entry, feed.step)["logits"]
    states = {name: readable(state) for name, state in executor.states().items()}
    return {"logits": logits[: len(feed.logits)], **states}


def _of_graph(exact: Eager, feed: Feed, interface: Interface) -> dict[str, np.ndarray]:
    """The same, as the graph computes it in float32."""
    count = feed.end - feed.first
    logits = exact(feed.step, decode=feed.decode).float().numpy()[count - len(feed.logits) : count]
    buffers = {name: buffer.numpy() for name, buffer in exact.module.named_buffers()}
    return {"logits": logits, **{spec.name: readable(buffers[spec.name]) for spec in interface.states}}


def _whole(fresh: Executor, step: _Step, target: str, dtype: str) -> Diagnostic:
    """Every call is right by itself: is it what is compiled across calls, or is the bundle another program?"""
    entry = step.feed.entry
    fresh.set_states(step.before)
    if not step.departing(_results(fresh, step.feed), dtype):
        message = f"the program of the bundle departs in `{entry}`; compiled again for `{target}`, the graph does not"
        help = "compile it again: this bundle was compiled by another version of the graph or of a tool"
        return _bu702(message, help)
    message = f"every call of `{entry}` agrees with torch when compiled by itself, together they do not"
    help = f"`{target}` goes wrong across calls: compile with --dump-dir DIR and report it with the files"
    return _bu702(message, help)


def _call(call: CallError, entry: str, target: str) -> Diagnostic:
    message = f"`{call.name}` of `{entry}` departs when compiled for `{target}` ({call.worst:.1e}), "
    message += "none of its operations does"
    return _bu702(
        message, "the fault shows only in the whole call: compile with --dump-dir DIR and report it with the files"
    )


def _bu702(message: str, help: str) -> Diagnostic:
    return Diagnostic(code="BU702", message=message, help=help)


def _op(found: Found, target: str) -> Diagnostic:
    op = found.op
    if op.state:
        how = f"only in what it leaves in the state `{op.state}` for the next step"
    else:
        how = "on its own, from torch's inputs" if op.alone else "only together with the operations before it"
    return Diagnostic(
        code="BU704",
        message=f"`{op.target}` departs from torch in `{op.call}` of `{op.entry}` when compiled for `{target}`, {how}: "
        f"{op.relative:.1e} of max |torch|, tolerance {op.tolerance:g} in {op.dtype}",
        help=f"the lowering of this operation is at fault; write it differently at {Site(op.file, op.line)}, or use "
        "`--target torch`; --save DIR keeps its tensors for a report",
        parameter=op.call,
    )


def weights_changed(
    stored: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], source: str
) -> Iterator[Diagnostic]:
    """BU705 for every tensor of a bundle that is not the checkpoint's, bit by bit."""
    for name, array in wanted.items():
        given = stored[name]
        if given.tobytes() != array.tobytes():
            wide, other = given.astype(np.float64), array.astype(np.float64)
            count = int((~((wide == other) | (np.isnan(wide) & np.isnan(other)))).sum())
            message = f"{count:,} of {array.size:,} elements differ, by {relative(given, array):.1e} of the largest"
            yield Diagnostic(
                code="BU705",
                message=f"weight `{name}` of the bundle is not what `{source}` gives: {message}",
                help="compile it again; was the checkpoint, or the bundle's weights file, changed since?",
                parameter=name,
            )


def module_departs(
    layers: Sequence[Layer], layer: Layer, reference: str, tolerance: float, sources: tuple[str, ...]
) -> Diagnostic:
    """BU701 for a module that departs by itself; where inputs were not recorded, for the first that departs."""
    error = layer.output if layer.alone is None else layer.alone
    inner = [other for other in layers if other.name.startswith(f"{layer.name}.") and other.alone is not None]
    if layer.alone is None:
        how = ""
    elif inner and not any(other.departs(tolerance) for other in inner):
        how = "; each of its parts agrees on the reference's inputs, so its own forward is at fault"
    else:
        how = "; it departs on the reference's own input too"
    if layer.bound is None:
        limit = f"of max |reference|, tolerance {tolerance:g}"
    else:
        limit = f"of the reference's root mean square, where rounding explains {layer.bound:.1e}"
    return Diagnostic(
        code="BU701",
        message=f"the first module that departs from {reference} is `{layer.name}`: {error:.1e} {limit}{how}",
        help="look at its forward and at the rules of its parameters: `bringup explain PARAMETER`",
        parameter=layer.name,
        sources=sources,
    )


def code_departs(layers: Sequence[Layer], reference: str, tolerance: float) -> Diagnostic:
    """BU701 for a graph that departs though each of its modules agrees on the reference's own input."""
    if not layers:
        message = f"the graph departs from {reference}, which has no modules to compare: the place is not known"
        help = "record what its modules take and give; see docs/verify.md"
        return Diagnostic(code="BU701", message=message, help=help)
    first = misfed(layers, tolerance)
    where = f"the first module with another input than the reference's is `{first.name}`" if first else "at its end"
    return Diagnostic(
        code="BU701",
        message=f"the graph departs from {reference}, and each of its modules agrees on the reference's own input: "
        f"the fault is in the code between modules; {where}",
        help="look at `prologue`, `final` and `epilogue` of the graph, and at the forward of what holds that module",
    )
