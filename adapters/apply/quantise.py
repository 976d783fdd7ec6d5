"""Quantisation of float weights: a plan whose matrices are rounded to codes and scales while they are read.

Weights only, without calibration: each scale follows from the values that share it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.copy_nest import Nest, by_axes
from bringup.adapters.algebra.quantised import Dequantise, is_stored_in_parts
from bringup.adapters.algebra.region import Region
from bringup.adapters.planning.plan import Entry, Plan
from bringup.diagnostics import fail
from bringup.graphs.core.axes import Axis
from bringup.graphs.core.form import NF4, Block, Form, count
from bringup.spec import DTYPES, FLOATS, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

GROUPS = re.compile(r"int4-g(\d+)")
LARGEST = {"int8": 127.0, "int4": 7.0, "float8_e4m3fn": 448.0, "float4_e2m1fn": 6.0}  # code; symmetric for integers
KNOWN = ("int8", "int4-gN", "fp8", "fp8-block", "mxfp4", "nf4")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The quantisation of a matrix: the dtype of codes, and how many values of a row (0: all), and rows, share a scale.

    `int8`, `fp8` (e4m3): one scale for each row; `int4-gN`: one for N values of a row; `fp8-block`: one for 128 rows of
    128 values, as in DeepSeek-V3, the last block may be shorter; `mxfp4`: a power of two for 32 values of a row (OCP
    Microscaling Formats 1.0, section 6.3); `nf4`: the largest magnitude of 64 values of a row, whose codes are indices
    into a `table` (arXiv 2305.14314, section 3, without double quantisation).
    """

    name: str
    codes: str
    rows: int
    along: int
    scale: str = "float32"
    table: tuple[float, ...] = ()

    def form(self, columns: int) -> Form:
        """The form for matrices whose products sum over dimension `columns`, counted from the end: -1 or -2."""
        block: Block = (self.rows, self.along) if columns == -1 else (self.along, self.rows)
        return Form(codes=self.codes, block=block, scale=self.scale, table=self.table)


def recipe_of(name: str) -> Recipe:
    """The recipe with this name. Raises BU413 for a name that is not in KNOWN."""
    if found := GROUPS.fullmatch(name):
        if int(found[1]) > 0:
            return Recipe(name, "int4", 1, int(found[1]))
    elif name in (simple := {
        "int8": Recipe(name, "int8", 1, 0),
        "fp8": Recipe(name, "float8_e4m3fn", 1, 0),
        "fp8-block": Recipe(name, "float8_e4m3fn", 128, 128),
        "mxfp4": Recipe(name, "float4_e2m1fn", 1, 32, "float8_e8m0fnu"),
        "nf4": Recipe(name, "uint4", 1, 64, table=NF4),
    }):  # fmt: skip
        return simple[name]
    raise fail("BU413", f"unknown quantisation recipe `{name}`", help=f"give one of: {', '.join(KNOWN)}")


@dataclass(frozen=True, slots=True)
class QuantisedPlan:
    """`plan` has the same parameters; `names` are those that are quantised, `left` the others, with the reasons."""

    plan: Plan
    names: tuple[str, ...]
    left: Mapping[str, str]


def quantise(plan: Plan, recipe: Recipe, parameters: Collection[str]) -> QuantisedPlan:
    """The plan with these parameters quantised, if they are read from float tensors in complete blocks."""
    entries, left = dict(plan.entries), dict[str, str]()
    for name in parameters:
        entry = plan.entries[name]
        found = _quantised(entry, recipe)
        if isinstance(found, str):
            left[name] = found
        else:
            entries[name] = found
    names = tuple(name for name in parameters if name not in left)
    return QuantisedPlan(replace(plan, entries=entries), names, left)


class QuantisedTensor(NamedTuple):
    """A tensor of the checkpoint that is quantised while it is read: `matrix` is a source of `entry`."""

    info: TensorInfo
    entry: Entry
    matrix: Computed


def quantised_tensors(plan: Plan) -> dict[str, QuantisedTensor]:
    """The tensors that `quantise` rounds, by name. Raises BU117 for one that another parameter reads as floats."""
    found: dict[str, QuantisedTensor] = {}
    whole: dict[str, Entry] = {}
    for entry in plan.entries.values():
        for index in sorted({nest.source for nest in entry.region.nests}):
            source = entry.sources[index]
            if isinstance(source, Computed) and source.form:
                codes = entry.sources[source.inputs[0].nests[0].source]
                assert isinstance(codes, Computed)
                info = entry.sources[codes.inputs[0].nests[0].source]
                assert isinstance(info, TensorInfo)
                found.setdefault(info.name, QuantisedTensor(info, entry, source))
            elif isinstance(source, TensorInfo):
                whole[source.name] = entry
    for name in found.keys() & whole.keys():
        message = f"`{name}` is quantised, and `{whole[name].declared.name}` reads it in floats"
        raise fail("BU117", message, help="export the checkpoint without --quantize", where=whole[name].rule.site)
    return found


def _quantised(entry: Entry, recipe: Recipe) -> Entry | str:
    """The entry over quantised sources, or the reason why there is none. Sources keep their indices."""
    read = sorted({nest.source for nest in entry.region.nests})
    sources = list(entry.sources)
    columns = _columns(entry)
    if isinstance(columns, str):
        return columns
    for index in read:
        info = sources[index]
        if isinstance(info, Computed) and is_stored_in_parts(info):
            return "the checkpoint has it quantised"
        if not isinstance(info, TensorInfo) or info.dtype not in FLOATS:
            return "it is computed, or not stored in floats"
        if len(info.shape) < 2 or (recipe.rows == 1 and info.shape[columns] % (recipe.along or 1)):
            return f"its rows are not whole blocks of {recipe.along}"
        sources.append(info)
        sources[index] = _matrix(info, len(sources) - 1, recipe, columns, sources)
    nests = tuple(replace(nest, view="float32") for nest in entry.region.nests)
    return replace(entry, sources=tuple(sources), region=replace(entry.region, nests=nests, dtype="float32"))


def _columns(entry: Entry) -> int | str:
    """The dimension of the sources, from the end, that becomes the parameter's last: products sum over it.
    Otherwise the reason why there is none."""
    found: set[int] = set()
    for nest in entry.region.nests:
        shape = entry.sources[nest.source].shape
        if DTYPES[nest.view].bits != DTYPES[entry.sources[nest.source].dtype].bits or entry.region.word > 1:
            return "its rule reads bits"
        for grid in by_axes(nest, shape, entry.region.shape):
            found |= {loop.source - len(shape) for loop in grid.loops if loop.result == len(entry.region.shape) - 1}
    (only,) = found if len(found) == 1 else (0,)
    return only if only in (-1, -2) else "its rows are not rows or columns of tensors"


def _matrix(
    info: TensorInfo, index: int, recipe: Recipe, columns: int, sources: list[TensorInfo | Computed]
) -> Computed:
    """The rounded values of the tensor at `index`, which is also available as codes and scales."""
    form, shape = recipe.form(columns), info.shape
    whole = dense(index, info.dtype, shape)
    leading = tuple(1 for _ in shape[:-2])
    block = (*leading, *form.block)
    scaled = (*shape[:-2], *(count(size, of) for size, of in zip(shape[-2:], form.block, strict=True)))
    run = Rounded(form, scales=False, name=info.name)
    into = tuple((of or size, of or size) for size, of in zip(shape, block, strict=True))
    codes = Computed(f"{recipe.name} codes", (whole,), shape, form.codes, run, exact=False, grains=(into,))
    sources.append(codes)
    of_codes = dense(len(sources) - 1, form.codes, shape)
    run = replace(run, scales=True)
    into = tuple((1, of or size) for size, of in zip(shape, block, strict=True))
    scales = Computed(f"{recipe.name} scales", (whole,), scaled, form.scale, run, exact=False, grains=(into,))
    sources.append(scales)
    of_scales = dense(len(sources) - 1, form.scale, scaled)
    each = tuple((1, 1) for _ in shape)
    by = tuple((of or size, 1) for size, of in zip(shape, block, strict=True))
    return Computed(
        f"quantise by {recipe.name}", (of_codes, of_scales), shape, "float32", Dequantise(form), exact=False,
        block=tuple(of or 1 for of in block), grains=(each, by), form=form,
    )  # fmt: skip


def dense(index: int, dtype: str, shape: Shape) -> Region:
    """A complete source, without movement."""
    size = math.prod(shape)
    axes = tuple(Axis(f"d{k}", n) for k, n in enumerate(shape))
    return Region(axes, dtype, (Nest(index, dtype, 0, ((size, 1, 1),) if size > 1 else (), 0),))


@dataclass(frozen=True, slots=True)
class Rounded:
    """The codes of a matrix, or its scales: the largest magnitude of a block / the largest code.

    For e8m0 scales the exponent is that of the largest magnitude minus that of the largest code, as in the
    specification; values above the largest code are clamped to it. A block of zeros has the scale 1. Raises BU133 for
    NaN and infinity, which would change the scale of their block; `name` is the tensor's.
    """

    form: Form
    scales: bool
    name: str

    def __call__(self, array: np.ndarray) -> np.ndarray:
        import numpy as np

        from bringup.adapters.checkpoints.arrays import numpy_dtype

        form = self.form
        values = array.astype(np.float32)
        rows, columns = (of or size for of, size in zip(form.block, values.shape[-2:], strict=True))
        down, across = -(-values.shape[-2] // rows), -(-values.shape[-1] // columns)
        padded = np.zeros((*values.shape[:-2], down * rows, across * columns), np.float32)
        padded[..., : values.shape[-2], : values.shape[-1]] = values
        blocks = padded.reshape(*values.shape[:-2], down, rows, across, columns)
        largest = np.abs(blocks).max(axis=(-3, -1))
        if not np.isfinite(largest).all():
            help = "was the tensor ever written? without --quantize, `bringup export` writes its values as they are"
            raise fail("BU133", f"`{self.name}` holds NaN or infinity, which cannot be quantised", help=help)
        top = np.float32(max(map(abs, form.table)) if form.table else LARGEST[form.codes])
        if form.scale == "float8_e8m0fnu":
            exponents = np.frexp(largest)[1] - np.frexp(top)[1]
            scales = np.ldexp(np.float32(1), np.clip(exponents, -127, 127)).astype(np.float32)
        else:
            scales = largest / top
        scales = np.where(largest == 0, np.float32(1), scales)
        if self.scales:
            return scales.astype(numpy_dtype(form.scale))
        codes = blocks / scales[..., :, None, :, None]
        codes = np.clip(codes, -top, top)
        if form.table:
            table = np.array(form.table, np.float32)
            codes = np.searchsorted((table[1:] + table[:-1]) / 2, codes)
        elif DTYPES[form.codes].kind == "int":
            codes = np.rint(codes)
        codes = codes.reshape(padded.shape)[..., : values.shape[-2], : values.shape[-1]]
        return np.ascontiguousarray(codes).astype(numpy_dtype(form.codes))
