"""Comparison of the graph's modules with a reference's: errors, and the module at fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bringup.compile.bisect.observation import Seen
from bringup.compile.parity.parity import Layer, relative
from bringup.compile.parity.reference import INPUT
from bringup.compile.parity.rounding import ROW, UNIT, rms

Arrays = Mapping[str, np.ndarray]
CLEAR = 10.0  # by this factor an error exceeds the tolerance, or is below it, if rounding does not decide


def compared(seen: Sequence[Seen], theirs: Arrays, names: Mapping[str, str]) -> Iterator[Layer]:
    """The errors of each module, as `relative`, for one tolerance. `names`: those of the reference that differ."""
    for module in seen:
        wanted = theirs[module.name]
        alone = None if module.alone is None else relative(module.alone, wanted)
        yield Layer(
            name=module.name, given=_given(module, theirs), output=relative(module.output, wanted), alone=alone,
            counterpart=names.get(module.name, ""),
        )  # fmt: skip


def compared_rounded(
    rounded: Sequence[Seen],
    exact: Sequence[Seen],
    theirs: Arrays,
    dtype: str,
    *,
    proven: bool,
) -> Iterator[Layer]:
    """The errors of each module in 16 bits: root mean squares of the median row, divided by the reference's.

    `exact` are the same modules in float32, `theirs` the reference's 16-bit inputs and outputs. If the graph is
    `proven` in float32, our rounding (`rounded` less `exact`) is bounded by the reference's (`theirs` less `exact`).
    Otherwise our rounding bounds `theirs` less `exact`.
    """
    for low, high in zip(rounded, exact, strict=True):
        wanted = theirs[low.name]
        ours, right = (low.output, high.output) if low.alone is None or high.alone is None else (low.alone, high.alone)
        scale = max(_median(wanted), 1e-30)
        error, other = _median(ours - right), _median(wanted - right)
        own, noise = (error, other) if proven else (other, error)
        bound = ROW * max(noise / scale, UNIT[dtype])
        off = _median(low.output - wanted) / scale
        alone = None if low.alone is None else own / scale
        yield Layer(
            name=low.name, given=_given(low, theirs), output=off if alone is not None else own / scale, alone=alone,
            bound=bound,
        )  # fmt: skip


def culprit(layers: Sequence[Layer], tolerance: float) -> Layer | None:
    """The first module that departs by itself; see `Layer.departs`. One that inherits its error is not at fault."""
    for layer in layers:
        if layer.departs(tolerance) and not (layer.bound is None and layer.output <= tolerance):
            return layer
    return None


def not_counterparts(layers: Sequence[Layer], tolerance: float, *, agrees: bool) -> set[str]:
    """Modules that hold the tensors of a module with another name, and do not return what that one does.

    Such a module departs although the module around it agrees: a convolution without the activation after it, for
    instance. It is left out in every layer, and is not around others. `agrees`: the graph does. A fault that shrinks to
    less than the tolerance in the module around is no reason: only clear differences are.
    """
    found: set[str] = set()

    def around(layer: Layer) -> bool:
        others = (other for other in layers if other.alone is not None and other.name not in found)
        outer = max((other for other in others if layer.name.startswith(f"{other.name}.")), key=_length, default=None)
        return agrees if outer is None else not outer.departs(tolerance / CLEAR)

    suspects = [layer for layer in layers if layer.counterpart and layer.departs(tolerance * CLEAR)]
    while kinds := {_kind(layer.name) for layer in suspects if layer.name not in found and around(layer)}:
        found |= {layer.name for layer in layers if layer.counterpart and _kind(layer.name) in kinds}
    return found


def _length(layer: Layer) -> int:
    return len(layer.name)


def _kind(name: str) -> str:
    """A module's name without the numbers of layers."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _given(module: Seen, theirs: Arrays) -> float | None:
    if module.given is None:
        return None if module.alone is None else 0.0
    return relative(module.given, theirs[module.name + INPUT])


def _median(array: np.ndarray) -> float:
    return float(np.median(rms(array)))
