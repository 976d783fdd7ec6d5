"""The ops of packed weights against brute force: whole parameters, some of their rows, and products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from bringup.adapters.apply.packed import CannotPack, packed
from bringup.compile.program.torch_arrays import to_tensor
from bringup.graphs.core.step import CacheSizes
from bringup.graphs.core.to_torch import to_torch
from bringup.graphs.layers.packed_weight import PackedWeight
from bringup.graphs.ops.quantised import Quantised, in_float32, some_of
from tests.quantised.brute_force import numbers
from tests.quantised.test_packed_nests import arrays_of, entry_of, moved


def quantised(case) -> tuple[Quantised, np.ndarray] | None:
    """What ops take of a random movement, and the numbers that it stands for."""
    stored, region = case
    entry = entry_of(stored, region)
    try:
        found = packed(entry)
    except CannotPack:
        return None
    if found is None:
        return None
    arrays = arrays_of(stored, entry, found)
    module = to_torch(PackedWeight(entry.declared.axes, found.packed), "float32", CacheSizes(context=64, chunk=64))
    for name, array in arrays.items():
        module.register_parameter(name, torch.nn.Parameter(to_tensor(array), requires_grad=False))
    return module.quantised(), numbers(found.packed, arrays)


@settings(max_examples=300, deadline=None)
@given(moved())
def test_dequantised_bit_by_bit(case) -> None:
    made = quantised(case)
    if made:
        weight, wanted = made
        np.testing.assert_array_equal(in_float32(weight).numpy(), wanted)
        rows = torch.tensor([wanted.shape[0] - 1, 0, wanted.shape[0] // 2])
        np.testing.assert_array_equal(in_float32(some_of(weight, rows)).numpy(), wanted[rows.numpy()])
