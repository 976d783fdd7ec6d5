"""Where a verification departs: weights, a module of the graph, or an operation of the compiled program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bringup.compile.bisect.calls import CallError, compare_calls
from bringup.compile.bisect.executors import Lower, lowered
from bringup.compile.bisect.ops import Found, Operations
from bringup.compile.bisect.replay import CallRun, arrays, readable, run_calls
from bringup.compile.feeds import Feed
from bringup.compile.parity import STAGE_TOLERANCE, TOLERANCE, Layer, relative
from bringup.compile.program import Entry, Executor, Program, bound
from bringup.compile.run.torch import TorchExecutor
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
    target: str,
    dtype: str,
) -> Departure | None:
    """Repeats the steps by torch and by `executor`, and follows the first that departs down to an operation.

    A step departs when its logits or the states it leaves do. None when no step does.
    """
    torch = TorchExecutor(program.exported, program.interface, weights)
    departing = _first_step(torch, executor, feeds, TOLERANCE[dtype])
    if departing is None:
        return None
    feed, what, before = departing
    entry = next(entry for entry in program.interface.entries if entry.name == feed.entry)
    runs = run_calls(program, entry, feed.step, weights, before)
    lower = lowered(target, weights)
    made = Departure(feed, what)
    made.calls = compare_calls(program, entry, runs, feed.step, before, lower)
    worst = STAGE_TOLERANCE[dtype]
    first = next((index for index, call in enumerate(made.calls) if not call.worst <= worst), None)
    if first is None:
        made.finding = _whole(program, entry, runs, feed, before, lower, target, TOLERANCE[dtype])
        return made
    operations = Operations(program, entry, runs[first], feed.step, lower)
    made.found = operations.alone() or operations.together(worst) or operations.left(made.calls[first], worst)
    made.finding = _op(made.found, target) if made.found else _call(made.calls[first], feed.entry, target)
    return made


def _first_step(
    torch: TorchExecutor, executor: Executor, feeds: Sequence[Feed], tolerance: float
) -> tuple[Feed, str, dict[str, np.ndarray]] | None:
    """The first step that departs, by what, and torch's states before it."""
    run = -1
    for feed in feeds:
        if feed.run != run:
            run = feed.run
            torch.reset()
            executor.reset()
        before = torch.states()
        wanted, given = torch.step(feed.entry, feed.step)["logits"], executor.step(feed.entry, feed.step)["logits"]
        if not relative(given[: len(feed.logits)], wanted[: len(feed.logits)]) <= tolerance:
            return feed, "logits", before
        left = executor.states()
        for name, state in torch.states().items():
            if not relative(readable(left[name]), readable(state)) <= tolerance:
                return feed, name, before
    return None


def _whole(
    program: Program,
    entry: Entry,
    runs: Sequence[CallRun],
    feed: Feed,
    before: Mapping[str, np.ndarray],
    lower: Lower,
    target: str,
    tolerance: float,
) -> Diagnostic:
    """Every call is right by itself: is it what is compiled across calls, or is the bundle another program?"""
    fresh = lower(program)
    fresh.set_states(before)
    given, left = fresh.step(entry.name, feed.step)["logits"], fresh.states()
    worst = relative(given, runs[-1].outputs[-1].float().numpy())
    for run in runs:
        kept = zip(bound(run.call, tuple(run.states_after)), arrays(list(run.states_after.values())), strict=True)
        worst = max([worst, *(relative(readable(left[name]), readable(state)) for name, state in kept)])
    if worst <= tolerance:
        said = f"the program of the bundle departs in `{feed.entry}`; compiled again for `{target}`, the graph does not"
        return _bu702(said, "compile it again: another version of the graph or of a tool made this bundle")
    said = f"every call of `{feed.entry}` agrees with torch when compiled by itself, together they do not"
    return _bu702(said, f"`{target}` goes wrong across calls: compile with --dump-dir DIR and report it with the files")


def _call(call: CallError, entry: str, target: str) -> Diagnostic:
    said = f"`{call.name}` of `{entry}` departs when compiled for `{target}` ({call.worst:.1e}), "
    said += "none of its operations does"
    return _bu702(
        said, "the fault shows only in the whole call: compile with --dump-dir DIR and report it with the files"
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
            said = f"{count:,} of {array.size:,} elements differ, by {relative(given, array):.1e} of the largest"
            yield Diagnostic(
                code="BU705",
                message=f"weight `{name}` of the bundle is not what `{source}` gives: {said}",
                help="compile it again; was the checkpoint, or the bundle's weights file, changed since?",
                parameter=name,
            )


def module_departs(
    layers: Sequence[Layer], layer: Layer, reference: str, tolerance: float, sources: tuple[str, ...]
) -> Diagnostic:
    """BU701 for a module that departs by itself, or for the first that departs."""
    error = layer.output if layer.alone is None else layer.alone
    inner = [other for other in layers if other.name.startswith(f"{layer.name}.") and other.alone is not None]
    if layer.alone is None:
        how = ""
    elif inner and all((other.alone or 0.0) <= tolerance for other in inner):
        how = "; each of its parts agrees on the reference's inputs, so its own forward is at fault"
    else:
        how = "; it departs on the reference's own input too"
    return Diagnostic(
        code="BU701",
        message=f"the first module that departs from {reference} is `{layer.name}`: "
        f"{error:.1e} of max |reference|, tolerance {tolerance:g}{how}",
        help="look at its forward and at the rules of its parameters: `bringup explain PARAMETER`",
        parameter=layer.name,
        sources=sources,
    )
