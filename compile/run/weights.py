"""Weights by name, as every executor takes them."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from bringup.compile.program import Interface


def dtype_of(name: str) -> np.dtype:
    """The numpy dtype of a TensorSpec; bfloat16 and fp8 are ml_dtypes'."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def check_weights(interface: Interface, weights: Mapping[str, np.ndarray]) -> None:
    """Compares names, shapes and dtypes: IREE takes any bytes of the right length.

    Raises ValueError listing every fault.
    """
    faults: list[str] = []
    for spec in interface.weights:
        array = weights.get(spec.name)
        if array is None:
            faults.append(f"{spec.name}: missing")
        elif array.shape != spec.shape or array.dtype != dtype_of(spec.dtype):
            faults.append(
                f"{spec.name}: expected {spec.dtype}{list(spec.shape)}, given {array.dtype}{list(array.shape)}"
            )
    if faults:
        raise ValueError("weights do not fit the program:\n  " + "\n  ".join(faults))
