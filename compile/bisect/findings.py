"""The findings of an attribution: changed weights, a module of the graph, an operation, a call, or the program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bringup.compile.bisect.calls import CallError
from bringup.compile.bisect.locate import Place
from bringup.compile.bisect.ops import Found
from bringup.compile.parity.parity import Layer, relative
from bringup.diagnostics import Diagnostic
from bringup.spec import Site


def call_departs(call: CallError, entry: str, target: str) -> Diagnostic:
    """BU702 for a call none of whose operations departs."""
    message = f"`{call.name}` of `{entry}` departs when compiled for `{target}` ({call.worst:.1e}), "
    message += "none of its operations does"
    return whole_departs(
        message, "the fault shows only in the complete call: compile with --dump-dir DIR and report it with the files"
    )


def whole_departs(message: str, help: str) -> Diagnostic:
    """BU702, for an error that shows in no smaller part."""
    return Diagnostic(code="BU702", message=message, help=help)


def op_departs(found: Found, target: str) -> Diagnostic:
    """BU704, for an operation."""
    op = found.op
    if op.state:
        how = f"only in what it writes to the state `{op.state}` for the next step"
    else:
        how = "on its own, from torch's inputs" if op.alone else "only together with the operations before it"
    off = f"{op.relative:.1e} of max |torch|, tolerance {op.tolerance:g} in {op.dtype}"
    if op.factor:
        off += f"; but on average its values are torch's times {1 + op.factor:.4f}, which rounding does not explain"
    return Diagnostic(
        code="BU704",
        message=f"`{op.target}` departs from torch in `{op.call}` of `{op.entry}` when compiled for `{target}`, {how}: "
        f"{off}",
        help=f"the lowering of this operation is at fault; write it differently at {Site(op.file, op.line)}, or use "
        "`--target torch`; --save DIR saves its tensors for a report",
        parameter=op.call,
    )


def weights_changed(
    stored: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], source: str
) -> Iterator[Diagnostic]:
    """BU705 for every tensor of a bundle that differs from the checkpoint's in any bit."""
    for name, array in wanted.items():
        given = stored[name]
        if given.tobytes() != array.tobytes():
            wide, other = given.astype(np.float64), array.astype(np.float64)
            count = int((~((wide == other) | (np.isnan(wide) & np.isnan(other)))).sum())
            message = f"{count:,} of {array.size:,} elements differ, by {relative(given, array):.1e} of the largest"
            yield Diagnostic(
                code="BU705",
                message=f"weight `{name}` of the bundle differs from that of `{source}`: {message}",
                help="compile it again; was the checkpoint, or the bundle's weights file, changed since?",
                parameter=name,
            )


def module_departs(
    layers: Sequence[Layer], place: Place, reference: str, tolerance: float, sources: tuple[str, ...]
) -> Diagnostic:
    """BU701 for the module of a place; if inputs were not recorded, for the first that departs.

    `sources` are the module's parameters.
    """
    layer = place.layer
    assert layer is not None
    error = layer.output if layer.alone is None else layer.alone
    inner = [other for other in layers if other.name.startswith(f"{layer.name}.") and other.alone is not None]
    if layer.alone is None:
        how = ""
    elif place.rope > tolerance:
        how = f"; the cosines of rope that it gets differ from the reference's by {place.rope:.1e}"
    elif inner and not any(other.departs(tolerance) for other in inner):
        without = _not_compared(layer.name, [other.name for other in inner], sources)
        # A counterpart of another name is the module that holds the tensors, whether they are the right ones or not.
        rules = " or a rule that reads the tensors of another part" if any(other.counterpart for other in inner) else ""
        parts = "each of its parts that is compared" if without else "each of its parts"
        how = f"; {parts} agrees on the reference's inputs, so its own forward{rules} is at fault"
        how += f", or a part that is not compared: {without}" if without else ""
    else:
        how = "; it departs on the reference's own input too"
        if unclear := min((other.name for other in inner if other.departs(tolerance)), key=len, default=""):
            how += f", as does its part {_shown(unclear, layers)}, which may be defined in another way there"
    if place.before:
        how += f"; the first of its parts with another input than the reference's is {_shown(place.before, layers)}"
    if layer.bound is None:
        limit = f"of max |reference|, tolerance {tolerance:g}"
    else:
        limit = f"of the reference's root mean square, where rounding explains {layer.bound:.1e}"
    name, check = _shown(layer.name, layers), "its forward and the rules of its parameters"
    if place.rope > tolerance:
        check = "the rope of the config, and its forward"
    return Diagnostic(
        code="BU701",
        message=f"the first module that departs from {reference} is {name}: {error:.1e} {limit}{how}",
        help=f"check {check}: `bringup explain {layer.name} MODEL --checkpoint SRC`",
        parameter=layer.name,
        sources=sources,
    )


def _not_compared(name: str, inner: Sequence[str], parameters: Sequence[str]) -> str:
    """The parts of a module that have parameters and are not among `inner` modules, as text."""
    others = (each for each in parameters if not any(each.startswith(f"{part}.") for part in inner))
    parts = (each.removeprefix(f"{name}.").rpartition(".")[0] for each in others)
    return ", ".join(f"`{part}`" for part in dict.fromkeys(parts) if part)


def _shown(name: str, layers: Sequence[Layer]) -> str:
    """A module's name, and the reference's name for it if that is another."""
    theirs = next((layer.counterpart for layer in layers if layer.name == name), "")
    return f"`{name}` (the reference's `{theirs}`)" if theirs else f"`{name}`"


def code_departs(layers: Sequence[Layer], before: str, reference: str, tolerance: float) -> Diagnostic:
    """BU701 for a graph that departs, and no module of which explains it on the reference's own input.

    `before`: the first module whose input is wrong.
    """
    if not layers:
        message = f"the graph departs from {reference}, which has no modules to compare: the place is not known"
        help = "record the inputs and outputs of its modules; see `bringup explain verify`"
        return Diagnostic(code="BU701", message=message, help=help)
    where = f"the first module with another input than the reference's is {_shown(before, layers)}"
    agree = not any(layer.alone is not None and layer.departs(tolerance) for layer in layers)
    what = "each of its modules agrees on the reference's own input" if agree else "no module explains it"
    return Diagnostic(
        code="BU701",
        message=f"the graph departs from {reference}, and {what}: "
        f"the fault is in the code between modules; {where if before else 'at its end'}",
        help="check `prologue`, `final` and `epilogue` of the graph, and the forward of the module around that one",
    )
