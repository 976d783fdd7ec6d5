"""dtypes in Triton's notation, the alignment of pointers, and the rows of views."""

from __future__ import annotations

import math
from itertools import pairwise

from bringup.compile.kernels.call import Constant, Kernel, Operand, Pointer
from bringup.compile.schedule.graph.op_graph import Buffer, View
from bringup.spec import DTYPES

SCALARS = {
    "float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "i1",
}  # fmt: skip
POINTERS = {name: f"*{scalar}" for name, scalar in SCALARS.items()}
TYPES = {
    "float64": "tl.float64", "float32": "tl.float32", "bfloat16": "tl.bfloat16", "float16": "tl.float16",
    "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5",
    "int64": "tl.int64", "int32": "tl.int32", "int16": "tl.int16", "int8": "tl.int8", "uint8": "tl.uint8",
    "bool": "tl.int1",
}  # fmt: skip
ALIGNMENT = 16  # bytes


def size_of(dtype: str) -> int:
    """The bytes of an element of a dtype."""
    return DTYPES[dtype].nbytes((1,))


def is_float(dtype: str) -> bool:
    """Whether a dtype is a floating-point type, of any size."""
    return "float" in dtype


def pointer(buffer: Buffer, offset: int = 0) -> Pointer:
    """The address of an element of a buffer; `offset` is in elements."""
    return Pointer(buffer.name, offset * size_of(buffer.dtype))


def kernel(
    stem: str,
    parameters: list[tuple[str, Operand]],
    constants: dict[str, Constant],
    *,
    num_warps: int = 4,
    num_stages: int = 2,
) -> tuple[Kernel, tuple[Operand, ...]]:
    """A kernel and its arguments. `parameters`: the type and the argument of each run-time parameter, in order."""
    aligned = tuple(
        at for at, (_, given) in enumerate(parameters) if isinstance(given, Pointer) and given.offset % ALIGNMENT == 0
    )
    specialised = Kernel(
        stem=stem,
        types=tuple(kind for kind, _ in parameters),
        constants=tuple(sorted(constants.items())),
        aligned=aligned,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return specialised, tuple(given for _, given in parameters)


def rows_of(view: View) -> tuple[int, int] | None:
    """(count, stride in elements) of a view's rows: all axes but the last, merged. None if no single stride fits."""
    axes = [(size, stride) for size, stride in zip(view.shape[:-1], view.strides[:-1], strict=True) if size != 1]
    if not axes:
        return 1, 0
    for (_, stride), (size, inner) in pairwise(axes):
        if stride != size * inner:
            return None
    return math.prod(size for size, _ in axes), axes[-1][1]


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()
