"""Each published layout: equal to numpy, invertible bit for bit, sliceable, and covered element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.reverse import reverse
from bringup.adapters.apply.shard import slice_plan
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.coverage import read_bits, total_bits
from bringup.adapters.planning.plan import make_plan
from tests.adapters.layouts import LAYOUTS, Case

layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
sizes = given(h=st.integers(1, 4), d=st.integers(1, 3).map(lambda n: 2 * n), seed=st.integers(0, 99))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def plan_of(case: Case):
    plan = make_plan(case.signature, case.adapter, case.checkpoint.headers)
    assert plan.problems == []
    return plan


@layouts
@sizes
@settings(max_examples=20, deadline=None)
def test_equals_numpy(layout, h, d, seed):
    case = layout(np.random.default_rng(seed), h, d)
    arrays = materialise(plan_of(case), case.checkpoint)
    assert arrays.keys() == case.expected.keys()
    for name, wanted in case.expected.items():
        assert same_bits(arrays[name], wanted), name
        assert arrays[name].flags.c_contiguous
        assert arrays[name].flags.writeable


@layouts
def test_table_is_short(layout):
    case = layout(np.random.default_rng(0), 2, 4)
    assert len(case.adapter.rules) <= 6


@layouts
@sizes
@settings(max_examples=20, deadline=None)
def test_inverse_is_bit_exact(layout, h, d, seed):
    case = layout(np.random.default_rng(seed), h, d)
    plan = plan_of(case)
    back = reverse(plan, materialise(plan, case.checkpoint))
    assert back.keys() == case.tensors.keys()
    assert all(same_bits(back[name], array) for name, array in case.tensors.items())


@layouts
@sizes
@settings(max_examples=20, deadline=None)
def test_slice_of_plan_is_slice_of_whole(layout, h, d, seed):
    case = layout(np.random.default_rng(seed), 2 * h, d)
    plan = plan_of(case)
    whole = materialise(plan, case.checkpoint)
    for rank in range(2):
        part = materialise(slice_plan(plan, case.parallel, rank, 2), case.checkpoint)
        for name, array in part.items():
            wanted = brute_slice(case, name, whole[name], rank, 2)
            assert same_bits(array, wanted), name


def brute_slice(case: Case, name: str, array: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    """Index arithmetic alone: the coordinates along each axis that a rank keeps."""
    declared = case.signature[name]
    for k, axis in enumerate(declared.axes):
        keep = np.array(rank_indices(axis, case.parallel, rank, ranks))
        if declared.pack and axis.name == declared.pack[0]:
            keep = np.unique(keep // declared.pack[1])
        array = np.take(array.view(np.uint8) if array.itemsize == 1 else array, keep, axis=k)
    return array


def rank_indices(axis, parallel, rank, ranks) -> list[int]:
    if axis.sum:
        found, at = [], 0
        for part in axis.parts:
            found += [at + i for i in rank_indices(part, parallel, rank, ranks)]
            at += part.size
        return found
    if axis.parts:
        found = [0]
        for part in axis.parts:
            found = [i * part.size + j for i in found for j in rank_indices(part, parallel, rank, ranks)]
        return found
    if axis.name not in parallel:
        return list(range(axis.size))
    if axis.size < ranks:
        return [rank * axis.size // ranks]
    return list(range(rank * axis.size // ranks, (rank + 1) * axis.size // ranks))


@layouts
@sizes
@settings(max_examples=20, deadline=None)
def test_coverage_equals_brute_force(layout, h, d, seed):
    """Every parameter element is written once, every tensor element is read once: marked one by one."""
    case = layout(np.random.default_rng(seed), h, d)
    plan = plan_of(case)
    bits = read_bits(plan)
    assert bits == {name: total_bits(plan.headers[name]) for name in case.tensors}
    for entry in plan.entries.values():
        region = entry.stored()
        written = np.zeros(region.size, int)
        for nest in region.nests:
            grid = np.indices([extent for extent, _, _ in nest.loops]).reshape(len(nest.loops), -1)
            steps = np.array([dst for _, _, dst in nest.loops], int)
            np.add.at(written, nest.dst + steps @ grid, 1)
        assert (written == 1).all()


def test_partial_reader_is_counted():
    case = LAYOUTS[4](np.random.default_rng(0), 2, 4)
    del case.adapter.rules[0]  # q.weight
    signature = {name: d for name, d in case.signature.items() if name != "q.weight"}
    plan = make_plan(type(case.signature)(signature), case.adapter, case.checkpoint.headers)
    name = "query_key_value.weight"
    assert read_bits(plan)[name] * 3 == total_bits(plan.headers[name]) * 2


def test_tied_parameters_do_not_share_memory():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    from bringup.adapters.algebra.expr import S
    from bringup.adapters.planning.adapter import Adapter
    from bringup.graphs.core.module import Param
    from tests.adapters.layouts import declare

    table = Adapter("tied", defaults=("vocab m",))
    table["{x:head|wte}.weight"] = S("wte.weight")
    params = declare(wte__weight=Param("vocab m", vocab=2, m=3), head__weight=Param("vocab m", vocab=2, m=3))
    checkpoint = dict_checkpoint({"wte.weight": array}, {})
    plan = make_plan(params, table, checkpoint.headers)
    arrays = materialise(plan, checkpoint)
    arrays["head.weight"][0, 0] = 99
    assert arrays["wte.weight"][0, 0] == 0
    assert plan.aliases() == {"head.weight": "wte.weight"}
