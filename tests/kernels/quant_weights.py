"""Packed weights as arguments of nodes, and their values in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from bringup.compile.schedule.graph.op_graph import Argument, View
from bringup.graphs.core.form import Form
from bringup.graphs.core.packed_form import PackedForm
from tests.kernels.graphs import Function

NF4 = (
    -1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626,
    0.723, 1.0,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A form of matrices, and how codes stand in words: `axis`, from the end, and `values`."""

    form: Form
    axis: int = 1
    values: int = 1


CASES = {
    "int8-rows": Case(Form(codes="int8", block=(1, 0))),
    "int8-groups": Case(Form(codes="int8", block=(1, 32), scale="float16")),
    "int4": Case(Form(codes="int4", block=(1, 32), scale="float16"), 2, 8),
    "int4-offset": Case(Form(codes="uint4", block=(1, 64), scale="bfloat16", offset=8), 2, 8),
    "int4-zeros": Case(Form(codes="uint4", block=(1, 16), scale="float16", zero="uint4"), 2, 8),
    "int4-signed-zeros": Case(Form(codes="int4", block=(1, 0), scale="float16", zero="int4"), 2, 2),
    "int4-along": Case(Form(codes="int4", block=(1, 16), scale="float16"), 1, 2),
    "q4_1": Case(Form(codes="uint4", block=(1, 32), scale="float16", minimum="float16"), 2, 8),
    "q4_k": Case(Form(codes="uint4", block=(1, 32), scale="uint8", minimum="uint8", outer=(1, 128)), 2, 8),
    "fp8-blocks": Case(Form(codes="float8_e4m3fn", block=(16, 32))),
    "fp8-matrix": Case(Form(codes="float8_e4m3fn", block=(0, 0), scale="bfloat16")),
    "fp8-e5m2": Case(Form(codes="float8_e5m2", block=(1, 0))),
    "mxfp4": Case(Form(codes="float4_e2m1fn", block=(1, 32), scale="float8_e8m0fnu"), 2, 8),
    "nvfp4": Case(Form(codes="float4_e2m1fn", block=(1, 16), scale="float8_e4m3fn", outer=(0, 0)), 2, 8),
    "nf4": Case(Form(codes="uint4", block=(1, 32), table=NF4), 2, 8),
    "act-order": Case(Form(codes="uint4", block=(1, 16), scale="float16", zero="uint4", index=True), 2, 8),
}
BITS = {"float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e8m0fnu": "uint8"}


class Weight:
    """Arguments of a node, as arrays of a function, and `numbers` in float64. `shape`: of a matrix, or of experts."""

    def __init__(
        self, f: Function, name: str, case: Case, shape: Sequence[int], dtype: str, activations: str = ""
    ) -> None:
        self.f, self.name, self.case, self.shape = f, name, case, tuple(shape)
        form, lead = case.form, (1,) * (len(shape) - 2)
        whole = (*lead, *shape[-2:])
        block = tuple(size or every for size, every in zip((*lead, *form.block), whole, strict=True))
        outer = (
            (*lead, *(size or every for size, every in zip(form.outer, shape[-2:], strict=True))) if form.outer else ()
        )
        groups = -(-shape[-1] // block[-1])
        if form.index:
            block = (*block[:-1], 1)
        parts = list(form.parts())
        self.packed = PackedForm(
            form=form, shape=self.shape, block=block, outer=outer, indexed=len(shape) - 1 if form.index else -1,
            groups=groups, dtypes=tuple(part.dtype for part in parts), dtype=dtype,
        )  # fmt: skip
        self.found: dict[str, np.ndarray] = {}
        self.arguments: dict[str, Argument] = {
            f"weight_{key}": None
            for key in ("codes", "scales", "zeros", "minimums", "outer_scales", "outer_minimums", "block_of")
        }
        for part in parts:
            values, stored = self._values(part.name, part.dtype, self.packed.shape_of(part))
            self.found[part.name] = values
            key = "block_of" if part.name == "index" else part.name
            self.arguments[f"weight_{key}"] = f.array(f"{name}.{part.name}", stored, stored.dtype.name)
        tables = {"table": self.packed.table, "scale_table": self.packed.scale_table}
        for key, table in tables.items():
            array = np.array(table, np.float32)
            view = f.array(f"{name}.{key}", array, "float32") if table else None
            self.arguments[f"weight_{key}"] = view
        code = form.codes
        self.arguments |= {
            "weight_shape": self.shape, "weight_axis": len(shape) - case.axis, "weight_values": case.values,
            "weight_bits": 4 if "4" in code.partition("_")[0] else 8,
            "weight_signed": code.startswith("int"),
            "weight_zero_bits": 4 if form.zero == "int4" else 0, "weight_offset": form.offset, "weight_block": block,
            "weight_outer_block": outer, "weight_indexed": self.packed.indexed, "weight_dtype": dtype,
            "weight_code_dtype": "" if form.table else code, "weight_scale_dtype": form.scale,
            "weight_activations": activations,
        }  # fmt: skip

    def _values(self, part: str, dtype: str, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Random values of a part in float64, and the array that holds them."""
        random, shape = self.f.random, tuple(shape)
        if part == "index":
            values = random.permutation(np.arange(shape[0]) * self.packed.groups // shape[0]).astype(np.int32)
            return values, values
        if part == "codes":
            return self._codes(dtype, shape)
        if part == "zeros":
            values = random.integers(-8, 8, shape) if dtype == "int4" else random.integers(0, 16, shape)
            return values.astype(np.float64), (values & 15).astype(np.uint8)
        if dtype == "uint8":
            values = random.integers(1, 64, shape).astype(np.uint8)
            return values.astype(np.float64), values
        if dtype == "float8_e8m0fnu":
            codes = random.integers(120, 130, shape).astype(np.uint8)
            return 2.0 ** (codes.astype(np.float64) - 127), codes
        held = np.dtype(getattr(ml_dtypes, dtype, dtype))
        stored = (random.uniform(0.5, 2, shape) / 8).astype(held)
        return stored.astype(np.float64), stored.view(np.uint8) if dtype.startswith("float8") else stored

    def _codes(self, dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        random, form = self.f.random, self.case.form
        if dtype in ("float8_e4m3fn", "float8_e5m2"):
            codes = random.integers(0, 120, shape) | random.integers(0, 2, shape) << 7
            codes = codes.astype(np.uint8)
            return codes.view(getattr(ml_dtypes, dtype)).astype(np.float64), codes
        if dtype == "int8":
            codes = random.integers(-128, 128, shape).astype(np.int8)
            return codes.astype(np.float64), codes
        codes = random.integers(0, 16, shape)
        if form.table:
            values = np.array(form.table, np.float32).astype(np.float64)[codes]
        elif dtype == "float4_e2m1fn":
            values = codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        else:
            values = (np.where(codes > 7, codes - 16, codes) if dtype == "int4" else codes).astype(np.float64)
        return values, _words(codes, len(shape) - self.case.axis, self.case.values)

    @property
    def numbers(self) -> np.ndarray:
        """(code - offset - zero) · (scale · outer scale) + minimum · outer minimum, of each place by itself."""
        codes = self.found["codes"].astype(np.float64)
        values = codes - self.case.form.offset - self._at("zeros", 0.0)
        values *= self._at("scales", 1.0) * self._at("outer_scales", 1.0)
        return values + self._at("minimums", 0.0) * self._at("outer_minimums", 1.0)

    def _at(self, part: str, otherwise: float) -> np.ndarray:
        """The value of a part for each place: that of the block which the place is in."""
        if part not in self.found:
            return np.full(self.shape, otherwise)
        places = list(np.indices(self.shape))
        blocks = self.packed.outer if part.startswith("outer") else self.packed.block
        indices = [place // block for place, block in zip(places, blocks, strict=True)]
        if "index" in self.found and not part.startswith("outer"):
            indices[-1] = self.found["index"][places[-1]]
        return self.found[part][tuple(indices)].astype(np.float64)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and what there is of a block; of tables none."""
        views = (view for key, view in self.arguments.items() if isinstance(view, View) and "table" not in key)
        return sum(self.f.arrays[view.buffer].nbytes for view in views)


def _words(codes: np.ndarray, axis: int, values: int) -> np.ndarray:
    """`values` numbers of 4 bits along an axis in a word, the first in the low bits."""
    if values == 1:
        return codes.astype(np.uint8)
    parts = np.moveaxis(codes, axis, -1)
    parts = parts.reshape(*parts.shape[:-1], -1, values).astype(np.uint64)
    words = np.zeros(parts.shape[:-1], np.uint64)
    for number in range(values):
        words |= parts[..., number] << np.uint64(4 * number)
    stored = words.astype({2: np.uint8, 8: np.uint32}[values])
    return np.ascontiguousarray(np.moveaxis(stored.view(np.int32) if values == 8 else stored, -1, axis))
