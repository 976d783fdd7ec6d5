"""Weights by name, as every executor takes them."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from bringup.compile.program import Interface
from bringup.diagnostics import BringupError, Diagnostic


def dtype_of(name: str) -> np.dtype:
    """The numpy dtype of a TensorSpec; bfloat16 and fp8 are ml_dtypes'."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def check_weights(interface: Interface, weights: Mapping[str, np.ndarray]) -> None:
    """Compares names, shapes and dtypes: IREE takes any bytes of the right length.

    Raises BU609, once for every fault.
    """
    faults: list[Diagnostic] = []
    for spec in interface.weights:
        array = weights.get(spec.name)
        if array is None:
            faults.append(_fault(spec.name, f"the program needs `{spec.name}`, which the weights lack"))
        elif array.shape != spec.shape or array.dtype != dtype_of(spec.dtype):
            wanted, given = f"{spec.dtype}{list(spec.shape)}", f"{array.dtype}{list(array.shape)}"
            faults.append(_fault(spec.name, f"the program takes `{spec.name}` as {wanted}, the weights have {given}"))
    if faults:
        raise BringupError(*faults)


def _fault(name: str, message: str) -> Diagnostic:
    return Diagnostic(code="BU609", message=message, help="compile the bundle again", parameter=name)
