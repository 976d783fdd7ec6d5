"""Movements of quantised matrices, projected on their blocks: the packed arrays stand for what the movement gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.quantised import QuantisedMatrix, shape_of_part
from bringup.adapters.algebra.region import Region, concat
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.apply.materialise import fill, fill_region
from bringup.adapters.apply.packed import CannotPack, Packed, packed
from bringup.adapters.planning.plan import Entry
from bringup.adapters.planning.rules import Rule
from bringup.graphs.core.axes import Axis, parse, sized
from bringup.graphs.core.form import Form
from bringup.graphs.core.module import Param
from bringup.graphs.core.signature import Declared
from bringup.graphs.layers.packed_weight import PackedWeight
from bringup.spec import DTYPES, Site, TensorInfo
from tests.quantised.brute_force import numbers

FORMS = (
    Form(codes="float8_e4m3fn", block=(4, 4)),
    Form(codes="int8", block=(1, 0), scale="float16"),
    Form(codes="float8_e4m3fn", block=(0, 0)),
    Form(codes="float4_e2m1fn", block=(1, 4), scale="float8_e8m0fnu"),
    Form(codes="float4_e2m1fn", block=(1, 4), scale="float8_e4m3fn", outer=(0, 0)),
    Form(codes="uint4", block=(1, 8), scale="float16", zero="uint4"),
    Form(codes="int4", block=(1, 4), zero="int8", offset=1),
    Form(codes="uint4", block=(1, 4), scale="float16", zero="uint4", index=True),
    Form(codes="uint4", block=(1, 4), scale="uint8", minimum="uint8", outer=(1, 8)),
    Form(codes="uint4", block=(1, 4), scale="float32", table=tuple(float(n) ** 3 / 7 for n in range(-8, 8))),
)


@dataclass
class Stored:
    """A checkpoint in memory: matrices of one form, whose arrays have random bits."""

    form: Form
    seed: int

    def __post_init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(self.seed)
        self.scope = Scope({}, (), Names({}), {})

    def matrix(self, rows: int, columns: int) -> Region:
        parts = {}
        for part in self.form.parts():
            name = f"{part.name}{len(self.arrays)}"
            shape = shape_of_part(part, (rows, columns))
            if part.name == "index":
                groups = -(-columns // self.form.block[1])
                array = self.random.permutation(np.arange(columns) % groups).astype(np.int32)
            else:
                array = self._random(part.dtype, shape)
            self.arrays[name] = array
            parts[name] = (part.name, TensorInfo(name, part.dtype, shape))
        self.scope.names = Names({info.name: info for _, info in parts.values()})
        axes = {len(shape): " ".join(f"a{k}" for k in range(len(shape))) for shape in ((1, 1), (1,))}
        sources = {role: S(name, axes[len(info.shape)]) for name, (role, info) in parts.items()}
        return QuantisedMatrix("test", self.form, sources).region(self.scope)

    def _random(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Few exponents, so that sums of products stay exact enough to compare bit by bit."""
        from bringup.adapters.checkpoints.arrays import numpy_dtype

        if DTYPES[dtype].kind == "float" and DTYPES[dtype].bits >= 16:
            return self.random.normal(size=shape).astype(numpy_dtype(dtype))
        if dtype == "float8_e8m0fnu":
            return self.random.integers(118, 136, shape).astype(np.uint8).view(numpy_dtype(dtype))
        if DTYPES[dtype].kind == "float":
            return self.random.normal(size=shape).astype(numpy_dtype(dtype))
        low, high = (-8, 8) if dtype == "int4" else (0, 16) if dtype == "uint4" else (-100, 100) if dtype == "int8" else (0, 64)
        return self.random.integers(low, high, shape).astype(numpy_dtype(dtype))

    def read(self, info: TensorInfo) -> np.ndarray:
        return self.arrays[info.name]


def entry_of(stored: Stored, region: Region) -> Entry:
    axes = tuple(Axis(f"n{k}", size) for k, size in enumerate(region.shape))
    rule = Rule("w", S("w"), Site("here", 1))
    return Entry(Declared("w", axes, "float32"), rule, tuple(stored.scope.sources), Region(axes, "float32", region.nests))


def arrays_of(stored: Stored, entry: Entry, found: Packed) -> dict[str, np.ndarray]:
    params = dict(PackedWeight(entry.declared.axes, found.packed).leaves(Param))
    arrays = {}
    for number, part in enumerate(found.packed.form.parts()):
        leaf = params[part.name]
        declared = Declared(part.name, leaf.axes, leaf.declared_dtype or "", leaf.pack)
        arrays[part.name] = fill(found.entry(number, declared, entry), stored.read)
        assert arrays[part.name].shape == declared.storage[0]
    return arrays


SIZES = st.sampled_from((8, 12, 16, 20, 24))


@st.composite
def moved(draw: st.DrawFn) -> tuple[Stored, Region]:
    """Matrices of one form, some cut, side by side or stacked, then split and permuted."""
    stored = Stored(draw(st.sampled_from(FORMS)), draw(st.integers(0, 1000)))
    rows, columns = draw(SIZES), draw(SIZES)
    count = draw(st.integers(1, 3))
    regions = [stored.matrix(rows, columns) for _ in range(count)]
    if draw(st.booleans()):
        axis = draw(st.integers(0, 1))
        size = (rows, columns)[axis]
        start = draw(st.integers(0, size // 4 - 1)) * 4
        regions = [region.window(axis, start, draw(st.sampled_from(range(start + 4, size + 1, 4)))) for region in regions[:1]]
    axis = draw(st.integers(0, 1))
    whole = concat([Region(tuple(Axis(n, s) for n, s in zip("rc", r.shape, strict=True)), r.dtype, r.nests) for r in regions], axis, "cat") if len(regions) > 1 else regions[0]
    r, c = whole.shape
    p = draw(st.sampled_from([n for n in range(1, r + 1) if r % n == 0]))
    order = draw(st.sampled_from(("(a b) c", "(b a) c", "c (a b)", "a b c", "b c a", "a c b", "(b a c)")))
    sizes = {"a": p, "b": r // p, "c": c}
    before = sized("(a b) c", sizes)
    return stored, whole.rearrange(before, sized(order, sizes))


@settings(max_examples=400, deadline=None)
@given(moved())
def test_packed_arrays_stand_for_what_the_movement_gives(case: tuple[Stored, Region]) -> None:
    stored, region = case
    entry = entry_of(stored, region)
    try:
        found = packed(entry)
    except CannotPack:
        return
    if found is None:
        assert len(region.shape) < 2
        return
    whole = fill_region(entry.region, entry.sources, stored.read, "float32")
    np.testing.assert_array_equal(numbers(found.packed, arrays_of(stored, entry, found)), whole)
