"""Movements of quantised matrices, projected on their blocks: the packed arrays stand for what the movement gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from bringup.adapters.algebra.region import Region
from bringup.adapters.apply.materialise import fill_region
from bringup.adapters.apply.packed import CannotPack, Packed, packed
from bringup.compile.program.torch_arrays import to_tensor
from bringup.graphs.core.axes import sized
from bringup.graphs.core.form import Form
from bringup.graphs.core.packed_form import numbers_of
from bringup.graphs.core.step import CacheSizes
from bringup.graphs.core.to_torch import to_torch
from bringup.graphs.layers.packed_weight import PackedWeight
from bringup.graphs.ops.quantised import Quantised, in_float32, pieces_of, some_of
from tests.quantised.brute_force import numbers
from tests.quantised.moved_matrices import FORMS, Stored, moved, side_by_side

FP8, INT4 = FORMS[0], Form(codes="uint4", block=(1, 8), scale="float16", zero="uint4")


def packed_or_none(stored: Stored, region: Region) -> Packed | None:
    try:
        return packed(stored.entry(region))
    except CannotPack:
        return None


def quantised(stored: Stored, region: Region, found: Packed) -> Quantised:
    """What ops take."""
    entry = stored.entry(region)
    module = to_torch(PackedWeight(entry.declared.axes, found.packed), "float32", CacheSizes(context=64, chunk=64))
    for name, array in stored.packed(entry, found).items():
        module.register_parameter(name, torch.nn.Parameter(to_tensor(array), requires_grad=False))
    assert isinstance(module, PackedWeight)
    for name, leaf in (("table", found.packed.table), ("scale_table", found.packed.scale_table)):
        assert not leaf or tuple(getattr(module, name).tolist()) == pytest.approx(leaf, nan_ok=True)
    return module.quantised()


@settings(max_examples=60, deadline=None)
@given(moved())
def test_packed_arrays_stand_for_what_the_movement_gives(case: tuple[Stored, Region]) -> None:
    stored, region = case
    found = packed_or_none(stored, region)
    if found is None:
        return
    entry = stored.entry(region)
    whole = fill_region(entry.region, entry.sources, stored.read, "float32")
    np.testing.assert_array_equal(numbers(found.packed, stored.packed(entry, found)), whole)
    weight = quantised(stored, region, found)
    np.testing.assert_array_equal(in_float32(weight).numpy(), whole)
    rows = torch.tensor([whole.shape[0] - 1, 0, whole.shape[0] // 2])
    np.testing.assert_array_equal(in_float32(some_of(weight, rows)).numpy(), whole[rows.numpy()])


def test_rows_of_a_transposed_matrix_have_the_scales_of_their_index() -> None:
    """Turned around, the index of groups goes along the rows, and a row's scales are those of its group."""
    stored = Stored(Form(codes="uint4", block=(1, 4), scale="float16", zero="uint4", index=True), 0)
    sizes = {"r": 8, "c": 12}
    transposed = stored.matrix(8, 12).rearrange(sized("r c", sizes), sized("c r", sizes))
    found = packed(stored.entry(transposed))
    assert found
    assert found.packed.indexed == 0
    entry = stored.entry(transposed)
    whole = fill_region(entry.region, entry.sources, stored.read, "float32")
    rows = torch.tensor([11, 0, 7, 7])
    chosen = some_of(quantised(stored, transposed, found), rows)
    np.testing.assert_array_equal(in_float32(chosen).numpy(), whole[rows.numpy()])


def test_blocks_that_stay_whole_keep_their_scales() -> None:
    """Of heads q, k, v side by side in one matrix, each is cut out; of experts, matrices are stacked and transposed."""
    stored = Stored(FP8, 0)
    qkv = side_by_side([stored.matrix(24, 16)], 0)
    cut = packed(stored.entry(qkv.window(0, 8, 16)))
    assert cut
    assert cut.packed.block == (4, 4)
    experts = side_by_side([stored.matrix(8, 16) for _ in range(3)], 0)
    transposed = experts.rearrange(
        sized("(a b) c", {"a": 3, "b": 8, "c": 16}), sized("a c b", {"a": 3, "b": 8, "c": 16})
    )
    stacked = packed(stored.entry(transposed))
    assert stacked
    assert stacked.packed.block == (1, 4, 4)


def test_a_cut_block_has_its_scale_twice() -> None:
    stored = Stored(FP8, 0)
    cut = packed(stored.entry(side_by_side([stored.matrix(24, 16)], 0).window(0, 2, 10)))
    assert cut
    assert cut.packed.block == (2, 4)


def test_a_short_last_block_stays_short() -> None:
    stored = Stored(FP8, 0)
    found = packed(stored.entry(side_by_side([stored.matrix(10, 14)], 0)))
    assert found
    assert found.packed.block == (4, 4)
    entry = stored.entry(side_by_side([stored.matrix(10, 14)], 0))
    assert stored.packed(entry, found)["scales"].shape == (3, 4)


def test_what_cannot_be_packed_says_why() -> None:
    stored, other = Stored(INT4, 0), Stored(FP8, 0)
    one = side_by_side([stored.matrix(8, 16)], 0)
    assert packed(stored.entry(one))
    other.scope = stored.scope
    mixed = side_by_side([stored.matrix(8, 16), other.matrix(8, 16)], 0)
    with pytest.raises(CannotPack, match="quantised in different ways"):
        packed(stored.entry(mixed))
    act_order = Stored(Form(codes="uint4", block=(1, 4), zero="uint4", index=True), 0)
    with pytest.raises(CannotPack, match="part of the columns"):
        packed(act_order.entry(side_by_side([act_order.matrix(8, 16)], 0).window(1, 0, 8)))


def test_numbers_of_narrow_floats_are_those_of_ml_dtypes() -> None:
    import ml_dtypes

    for dtype, bits in (("float8_e4m3fn", 8), ("float8_e5m2", 8), ("float8_e8m0fnu", 8), ("float4_e2m1fn", 4)):
        codes = np.arange(2**bits, dtype=np.uint8).view(getattr(ml_dtypes, dtype))
        np.testing.assert_array_equal(np.array(numbers_of(dtype), np.float32), codes.astype(np.float32))


@settings(max_examples=40, deadline=None)
@given(moved())
def test_pieces_of_rows_are_the_whole(case: tuple[Stored, Region]) -> None:
    stored, region = case
    found = packed_or_none(stored, region)
    if found is None:
        return
    weight = quantised(stored, region, found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bringup.graphs.ops.quantised.AT_A_TIME", 64)
        parts = [in_float32(piece) for piece in pieces_of(weight)]
    np.testing.assert_array_equal(torch.cat(parts).numpy(), in_float32(weight).numpy())
