"""Random movements of quantised matrices, and the resulting parameters."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from bringup.adapters.algebra.expr import S
from bringup.adapters.algebra.quantised import QuantisedMatrix, shape_of_part
from bringup.adapters.algebra.region import Region, concat
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.apply.materialise import fill
from bringup.adapters.apply.packed import Packed
from bringup.adapters.checkpoints.arrays import numpy_dtype
from bringup.adapters.planning.plan import Entry
from bringup.adapters.planning.rules import Rule
from bringup.graphs.core.axes import Axis, sized
from bringup.graphs.core.form import Form, FormPart
from bringup.graphs.core.module import Param
from bringup.graphs.core.signature import Declared
from bringup.graphs.layers.packed_weight import PackedWeight
from bringup.spec import DTYPES, Site, TensorInfo

FORMS = (
    Form(codes="float8_e4m3fn", block=(4, 4)),
    Form(codes="float8_e5m2", block=(0, 0)),
    Form(codes="int8", block=(1, 0), scale="float16"),
    Form(codes="float4_e2m1fn", block=(1, 4), scale="float8_e8m0fnu"),
    Form(codes="float4_e2m1fn", block=(1, 4), scale="float8_e4m3fn", outer=(0, 0)),
    Form(codes="uint4", block=(1, 8), scale="float16", zero="uint4"),
    Form(codes="int4", block=(1, 4), zero="int4", offset=1),
    Form(codes="uint4", block=(1, 4), scale="float16", zero="uint4", index=True),
    Form(codes="uint4", block=(1, 4), scale="uint8", minimum="uint8", outer=(1, 8)),
    Form(codes="uint4", block=(1, 4), scale="float32", table=tuple(float(n) ** 3 / 7 for n in range(-8, 8))),
)
RANGES = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-100, 100), "uint8": (0, 64), "float8_e8m0fnu": (118, 136)}


class Stored:
    """A checkpoint in memory: matrices of one form, whose arrays hold random numbers."""

    def __init__(self, form: Form, seed: int) -> None:
        self.form, self.random = form, np.random.default_rng(seed)
        self.arrays: dict[str, np.ndarray] = {}
        self.scope = Scope({}, (), Names({}), {})

    def matrix(self, rows: int, columns: int) -> Region:
        parts = {}
        infos: dict[str, TensorInfo] = {}
        for part in self.form.parts():
            name, shape = f"{part.name}{len(self.arrays)}", shape_of_part(part, (rows, columns))
            self.arrays[name] = self._array(part, shape)
            infos[name] = TensorInfo(name, part.dtype, shape)
            parts[part.name] = S(name, " ".join(f"a{k}" for k in range(len(shape))))
        self.scope.names = Names(infos)
        return QuantisedMatrix("test", self.form, parts).region(self.scope)

    def _array(self, part: FormPart, shape: tuple[int, ...]) -> np.ndarray:
        if part.name == "index":
            groups = -(-shape[0] // self.form.block[1])
            return self.random.permutation(np.arange(shape[0]) % groups).astype(np.int32)
        kind = numpy_dtype(part.dtype)
        if part.dtype in RANGES:
            drawn = self.random.integers(*RANGES[part.dtype], shape)
            exponents = DTYPES[part.dtype].kind == "float"
            return drawn.astype(np.uint8).view(kind) if exponents else drawn.astype(kind)
        return self.random.normal(size=shape).astype(kind)

    def read(self, info: TensorInfo) -> np.ndarray:
        return self.arrays[info.name]

    def entry(self, region: Region) -> Entry:
        """A parameter that a region fills."""
        axes = tuple(Axis(f"n{k}", size) for k, size in enumerate(region.shape))
        rule = Rule("w", S("w"), Site("here", 1))
        filled = Region(axes, "float32", region.nests)
        return Entry(Declared("w", axes, "float32"), rule, tuple(self.scope.sources), filled)

    def packed(self, entry: Entry, found: Packed) -> dict[str, np.ndarray]:
        """The arrays of a packed parameter, by part."""
        params = dict(PackedWeight(entry.declared.axes, found.packed).leaves(Param))
        arrays: dict[str, np.ndarray] = {}
        for number, part in enumerate(found.packed.form.parts()):
            leaf = params[part.name]
            declared = Declared(part.name, leaf.axes, leaf.declared_dtype or "", leaf.pack)
            arrays[part.name] = fill(found.entry(number, declared, entry), self.read)
            assert arrays[part.name].shape == declared.storage[0]
        return arrays


def side_by_side(regions: list[Region], axis: int) -> Region:
    named = [Region((Axis("r", r.shape[0]), Axis("c", r.shape[1])), r.dtype, r.nests) for r in regions]
    return concat(named, axis, "side") if len(named) > 1 else named[0]


SIZES = st.sampled_from((8, 12, 16, 20, 24))
ORDERS = ("(a b) c", "(b a) c", "c (a b)", "a b c", "b c a", "a c b", "(b a c)")


@st.composite
def moved(draw: st.DrawFn) -> tuple[Stored, Region]:
    """Matrices of one form, one cut or several side by side, then split and permuted."""
    stored = Stored(draw(st.sampled_from(FORMS)), draw(st.integers(0, 1000)))
    rows, columns, axis = draw(SIZES), draw(SIZES), draw(st.integers(0, 1))
    if draw(st.booleans()):
        size = (rows, columns)[axis]
        start = draw(st.sampled_from(range(0, size - 3, 4)))
        stop = draw(st.sampled_from(range(start + 4, size + 1, 4)))
        whole = side_by_side([stored.matrix(rows, columns).window(axis, start, stop)], axis)
    else:
        whole = side_by_side([stored.matrix(rows, columns) for _ in range(draw(st.integers(1, 3)))], axis)
    r, c = whole.shape
    outer = draw(st.sampled_from([n for n in range(1, r + 1) if r % n == 0]))
    sizes = {"a": outer, "b": r // outer, "c": c}
    return stored, whole.rearrange(sized("(a b) c", sizes), sized(draw(st.sampled_from(ORDERS)), sizes))
