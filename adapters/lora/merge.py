"""The sum that a LoRA adds to the weights of its base, and the magnitudes of DoRA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from bringup.adapters.lora.factors import LowRank

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


def delta(factors: Sequence[LowRank], arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """ΔW of a parameter, with its axes: the sum over its factors of scale · b · a, in float32.

    `arrays` has each factor's a and b, from `Lora.arrays`.
    """
    import numpy as np

    total: np.ndarray | None = None
    for factor in factors:
        a, b = (arrays[name].astype(np.float32) for name in (factor.a, factor.b))
        rank = len(factor.placed) + len(factor.given) + len(factor.summed)  # an index of its own in einsum
        of_a, of_b = [*factor.placed, rank, *factor.summed], [*factor.placed, *factor.given, rank]
        product = cast("np.ndarray", np.einsum(cast(Any, b), of_b, a, of_a, [*range(rank)], optimize=True))
        product *= np.float32(factor.scale)
        total = product if total is None else total + product
    assert total is not None, "a site has factors"
    return total


def scale_rows(total: np.ndarray, factor: LowRank, magnitudes: np.ndarray, has_one: np.ndarray) -> None:
    """Scales rows of W + ΔW, float32, in place: m · (W + ΔW) / ‖W + ΔW‖ (arXiv 2402.09353, equation 5).

    `magnitudes` and `has_one`, which is false for rows without a magnitude, have the axes of `placed` and `given`. A
    row of zeros has no direction, and is unchanged.
    """
    import numpy as np

    norms = np.sqrt(np.square(total, dtype=np.float64).sum(axis=factor.summed, keepdims=True))
    order = np.argsort((*factor.placed, *factor.given))
    of_rows, rows = (array.transpose(order).reshape(norms.shape) for array in (magnitudes, has_one))
    gains = np.ones_like(norms)
    np.divide(of_rows, norms, out=gains, where=rows & (norms > 0))
    total *= gains.astype(np.float32)
