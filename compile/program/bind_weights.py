"""Checks the weights that an executor binds by name."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from bringup.compile.program.program import Interface
from bringup.diagnostics import BringupError, Diagnostic


def dtype_of(name: str) -> np.dtype:
    """The numpy dtype of a TensorSpec's `dtype`; bfloat16 and float8 are those of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def check_weights(interface: Interface, weights: Mapping[str, np.ndarray]) -> None:
    """Compares names, shapes and dtypes, because IREE accepts any bytes of the right length.

    Raises BU609 with one finding for each fault; weights with the same wrong dtype are one fault.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for spec in interface.weights:
        array = weights.get(spec.name)
        if array is None:
            alike.setdefault(("", "lack it"), []).append(spec.name)
        elif array.dtype != dtype_of(spec.dtype):
            alike.setdefault((f" as {spec.dtype}", f"have {array.dtype}"), []).append(spec.name)
        elif array.shape != spec.shape:
            shapes = f" as {spec.dtype}{list(spec.shape)}", f"have {array.dtype}{list(array.shape)}"
            alike.setdefault(shapes, []).append(spec.name)
    if alike:
        raise BringupError(*(_fault(names, *how) for how, names in alike.items()))


def _fault(names: list[str], wanted: str, given: str) -> Diagnostic:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    message = f"the program expects `{names[0]}`{more}{wanted}, the weights {given}"
    return Diagnostic(code="BU609", message=message, help="compile the bundle again", parameter=names[0])
