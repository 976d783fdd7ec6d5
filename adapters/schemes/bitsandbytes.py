"""bitsandbytes: eight bits with a scale for each row, or four bits in blocks that continue from row to row.

bitsandbytes/nn/modules.py (`Linear8bitLt`, `Params4bit`) and functional.py (`QuantState.as_dict`, `quantize_4bit`,
`int8_vectorwise_dequant`): with four bits a weight is table[code] · absmax; the codes of even indices are in the high
bits of bytes. With double quantisation absmax is table2[code2] · absmax2 + offset; the offset is in JSON.

Modules of class `Linear` are converted. From version 5 on, transformers has the experts of a layer in one parameter,
and they remain floats; before, each was a module.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from bringup.adapters.algebra.expr import Expr, cat
from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.values import ValueNode, scale
from bringup.adapters.schemes.quant_state import NESTED_BLOCK, NestedScales, Scales, State
from bringup.adapters.schemes.scheme import Modules, Scheme, Stored, StoredMatrix, Unread
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.axes import Axes
from bringup.graphs.core.form import NF4, WHOLE, Form, count
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np

BLOCK = 64  # default number of values that share a scale
BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096, 32)
LARGEST = 127  # the int8 code of a row's largest magnitude

# bitsandbytes/functional.py, `get_4bit_type`.
TABLES = {
    "nf4": NF4,
    "fp4": tuple(sign * value / 12 for sign in (1, -1) for value in (0, 0.0625, 8, 12, 4, 6, 2, 3)),
}


@dataclass(frozen=True, slots=True)
class Int8(Stored):
    """`SCB` has the largest magnitude of each row, whose code is 127."""

    scheme: ClassVar[str] = "bitsandbytes int8"
    parts: ClassVar[tuple[str, ...]] = ("weight", "SCB")
    leaves_experts: ClassVar[bool] = True
    unquantized: UnquantizedModules

    def matrix(self, weight: StoredMatrix) -> QuantisedMatrix:
        codes = weight.part("weight", "out in", "int8")
        scales = scale(weight.part("SCB", "out", "float32"), 1 / LARGEST)
        return QuantisedMatrix(self.scheme, Form(codes="int8", block=(1, WHOLE)), {"codes": codes, "scales": scales})

    def unread_parts(self) -> Iterator[Unread]:
        yield Unread("weight_format", "the mark of rows in order", requires="weight", wrong=_not_rows)


def _not_rows(modules: Modules, parts: Mapping[str, TensorInfo], mark: np.ndarray) -> str:
    """`Linear8bitLt` writes 0, `row`; older versions wrote the layouts of GPU kernels."""
    return "" if not mark.any() else "the matrix is in the order of a GPU's kernels, not row by row: save it again"


@dataclass(frozen=True, slots=True)
class FourBits(Stored):
    """`table` is nf4 or fp4; `nested`: whether scales are quantised too, if no tensor shows it."""

    scheme: ClassVar[str] = "bitsandbytes"
    parts: ClassVar[tuple[str, ...]] = (
        "weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
        "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4",
    )  # fmt: skip
    leaves_experts: ClassVar[bool] = True
    table: str
    nested: bool
    unquantized: UnquantizedModules

    def matrix(self, weight: StoredMatrix) -> Expr:
        block = _block(weight)
        form = Form(codes="uint4", block=(1, block), table=TABLES[self.table])
        parts = {"codes": _codes(weight), "scales": weight.sized(partial(self._scales, weight, block))}
        return weight.by_rows(QuantisedMatrix(f"{self.scheme} {self.table}", form, parts))

    def _scales(self, weight: StoredMatrix, block: int, rows: int, columns: int) -> Expr:
        nested = "weight.nested_absmax" in weight.tensors or (self.nested and "weight.absmax" not in weight.tensors)
        state = weight.part(f"weight.quant_state.bitsandbytes__{self.table}", "any", "uint8")
        own = weight.part("weight.absmax", f"all/{block}", "uint8" if nested else "float32")
        name, stated = (
            f"{self.scheme}: scales",
            State(self.table, block, rows or _values(weight) // (columns or 1), columns),
        )
        if not nested:
            return ValueNode(
                name, (own, state), _as_scales, Scales(stated), exact=False,
                accepts=({"float32"}, {"uint8"}), grain=((1,), (0,)),
            )  # fmt: skip
        outer = weight.part("weight.nested_absmax", f"all/{block * NESTED_BLOCK}", "float32")
        table = weight.part("weight.nested_quant_map", "256", "float32")
        return ValueNode(
            name, (own, outer, table, state), _as_scales, NestedScales(stated), exact=False,
            accepts=({"uint8"}, {"float32"}, {"float32"}, {"uint8"}), grain=((1,), (NESTED_BLOCK,), (0,), (0,)),
        )  # fmt: skip

    def unread_parts(self) -> Iterator[Unread]:
        why = f"the table of {self.table}, which is always the same"
        yield Unread("weight.quant_map", why, requires="weight", wrong=partial(_other_table, self.table))


def _as_scales(regions: tuple[Region, ...]) -> tuple[Axes, str]:
    """The axes of the first input, and float32."""
    return regions[0].axes, "float32"


def _codes(weight: StoredMatrix) -> Expr:
    """The codes, flat. Bytes may be stored as elements of another dtype (`bnb_4bit_quant_storage`)."""
    found = weight.tensors.get("weight")
    dtype = found.dtype if found else "uint8"
    values = max(DTYPES[dtype].bits // 4, 1)
    stored = weight.part("weight", f"all:{values} 1", dtype).mv("element one -> (element one)")
    if values > 2:
        stored = stored.bits("uint8", "byte").mv("element byte -> (element byte)")
    low, high = stored.bits("uint4", "half").split("half", 1, 1)
    return weight.within(cat(high, low, axis="half").mv("byte half -> (byte half)"), "all")


def _block(weight: StoredMatrix) -> int:
    """The number of values that share a scale, by the counts of both. The file's own value is compared later."""
    scales, values = weight.tensors.get("weight.absmax"), _values(weight)
    if not values or scales is None:
        return BLOCK
    return next((block for block in BLOCKS if count(values, block) == math.prod(scales.shape)), BLOCK)


def _values(weight: StoredMatrix) -> int:
    """The number of values that the codes have room for; 0 for dummy weights."""
    codes = weight.tensors.get("weight")
    return math.prod(codes.shape) * DTYPES[codes.dtype].bits // 4 if codes else 0


def _other_table(table: str, modules: Modules, parts: Mapping[str, TensorInfo], values: np.ndarray) -> str:
    import numpy as np

    known = np.array(TABLES[table], np.float32)
    return "" if np.array_equal(values, known) else f"it is not the table of {table}"


def read(words: Fields) -> Stored | None:
    """Ignores how a program multiplies (`llm_int8_threshold`, `bnb_4bit_compute_dtype`, …)."""
    words.read |= {
        "_load_in_4bit", "_load_in_8bit", "llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload",
        "llm_int8_has_fp16_weight", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage",
    }  # fmt: skip
    unquantized = UnquantizedModules.from_fields(words)
    nested = words.get("bnb_4bit_use_double_quant", bool, False)
    table = words.choice("bnb_4bit_quant_type", list(TABLES), "fp4")
    in_four, in_eight = (words.get(f"load_in_{bits}bit", bool, False) for bits in (4, 8))
    if in_four is in_eight:
        both = "both `load_in_4bit` and `load_in_8bit`" if in_four else "neither `load_in_4bit` nor `load_in_8bit`"
        words.error("BU122", f"config sets {both}", "load_in_8bit", "set the one that applies")
    return FourBits(table, nested, unquantized) if in_four else Int8(unquantized)


scheme = Scheme(
    name="bitsandbytes",
    methods=("bitsandbytes",),
    read=read,
    dequantise="transformers: `from_pretrained(…).dequantize()`, then `save_pretrained`",
)
