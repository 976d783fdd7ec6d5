# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Transposes of large matrices by vector instructions, where llvmlite is installed.

numpy's inner loop moves one element at a time: of elements of 2 bytes that is a fifth of the speed of a copy. Here a
square block that fits into vector registers is transposed by shuffles: for each half of the block's side, down to 1,
rows that far apart swap blocks (Eklundh, A fast computer method for matrix transposing, IEEE Transactions on Computers
C-21, 1972). Vectors have 16 bytes, which every x86-64 and ARM64 processor has. Blocks make up squares of a cache line
by a cache line: a line is written whole, past the caches where it is aligned, as large copies are. A band of rows is
done before the next, for the pages of a band are few enough to stay in the tables of a processor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

VECTOR, LINE = 16, 64  # bytes
BAND = 512  # rows
LEAST = 1 << 22  # bytes: below, compiling takes longer than numpy does
Transpose = Callable[[int, int, int, int, int, int], None]

# The loops from the outermost: a name, where it starts and ends, and its step in elements of `width` bytes.
_LOOPS: tuple[tuple[str, str, str, Callable[[int], int]], ...] = (
    ("band", "0", "%rows", lambda width: BAND),
    ("column", "0", "%columns", lambda width: LINE // width),
    ("row", "%band", "%band.end", lambda width: LINE // width),
    ("x", "%column", "%column.end", lambda width: VECTOR // width),
)


def transpose(target: np.ndarray, source: np.ndarray) -> bool:
    """Copies a matrix to one that has its elements the other way round in memory, and says whether it did.

    Both are of one shape; `source` has neighbours along its columns and `target` along its rows. False, with nothing
    written, where the matrix is small, its elements have other than 1, 2, 4 or 8 bytes or are cast, or llvmlite is not
    installed.
    """
    width, (rows, columns) = source.itemsize, source.shape
    if target.dtype != source.dtype or width not in (1, 2, 4, 8) or source.nbytes < LEAST or not installed():
        return False
    side = LINE // width
    whole = (rows // side * side, columns // side * side)
    aligned = target.ctypes.data % VECTOR == target.strides[1] % VECTOR == 0
    _function(width, aligned)(target.ctypes.data, source.ctypes.data, *whole, target.strides[1], source.strides[0])
    target[whole[0] :], target[:, whole[1] :] = source[whole[0] :], source[:, whole[1] :]
    return True


@cache
def installed() -> bool:
    """Whether llvmlite is."""
    return find_spec("llvmlite") is not None


@cache
def _function(width: int, aligned: bool) -> Transpose:
    """The compiled function: addresses, rows, columns, and the bytes from one row to the next of target and source."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(opt=3, jit=True)
    module = binding.parse_assembly(text(width, aligned))
    module.verify()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _ENGINES.append(engine)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(engine.get_function_address("transpose"))


_ENGINES: list[object] = []  # what owns the functions' memory


def text(width: int, aligned: bool) -> str:
    """The function in LLVM's language, for elements of `width` bytes; `aligned` where rows of the target are."""
    lines, outside = ["br label %band.head"], "entry"
    for name, start, end, step in _LOOPS:
        leave = "done" if name == "band" else f"{outside.removesuffix('.body')}.again"
        lines += [
            f"{name}.head:",
            f"%{name} = phi i64 [ {start}, %{outside} ], [ %{name}.next, %{name}.again ]",
            f"%{name}.inside = icmp slt i64 %{name}, {end}",
            f"br i1 %{name}.inside, label %{name}.body, label %{leave}",
            f"{name}.body:",
            f"%{name}.next = add i64 %{name}, {step(width)}",
        ]
        outside = f"{name}.body"
        if name in ("band", "column"):
            limit = "%rows" if name == "band" else "%columns"
            lines += [f"%{name}.less = icmp slt i64 %{name}.next, {limit}",
                      f"%{name}.end = select i1 %{name}.less, i64 %{name}.next, i64 {limit}"]  # fmt: skip
        inner = {"band": "column", "column": "row", "row": "x"}.get(name)
        lines += [f"br label %{inner}.head"] if inner else [*_blocks(width, aligned), "br label %x.again"]
    for name, *_ in _LOOPS:
        lines += [f"{name}.again:", f"br label %{name}.head"]
    parameters = "ptr noalias %target, ptr noalias %source, i64 %rows, i64 %columns, i64 %down, i64 %along"
    function = [f"define void @transpose({parameters}) {{", "entry:", *lines, "done:", "ret void", "}"]
    return "\n".join([*function, "!0 = !{i32 1}"])


def _blocks(width: int, aligned: bool) -> list[str]:
    """Blocks one below the other, a cache line high, from row `%row` and column `%x`: loads, swaps, stores of lines."""
    side, count = VECTOR // width, LINE // VECTOR
    vector = f"<{side} x i{8 * width}>"
    lines: list[str] = []
    blocks: list[list[str]] = []
    for block in range(count):
        rows = [f"%in{block}.{row}" for row in range(side)]
        for row, name in enumerate(rows):
            lines += _address(f"%from{block}.{row}", "%source", "%row", block * side + row, "%along", "%x", 0, width)
            lines.append(f"{name} = load {vector}, ptr %from{block}.{row}, align {width}")
        blocks.append(_swapped(rows, f"%swap{block}", vector, lines))
    store = f"align {VECTOR}, !nontemporal !0" if aligned else f"align {width}"
    for row in range(side):
        for block in range(count):
            lines += _address(f"%to{block}.{row}", "%target", "%x", row, "%down", "%row", block * side, width)
            lines.append(f"store {vector} {blocks[block][row]}, ptr %to{block}.{row}, {store}")
    return lines


def _swapped(rows: list[str], name: str, vector: str, lines: list[str]) -> list[str]:
    """The rows of a transposed block, for which `lines` gets the shuffles."""
    side = len(rows)
    half = side // 2
    while half:
        found = list(rows)
        for row in range(side):
            first, second, far = rows[row & ~half], rows[row | half], row & half
            mask = ", ".join(f"i32 {(lane & ~half | far) + (side if lane & half else 0)}" for lane in range(side))
            found[row] = f"{name}.{half}.{row}"
            lines.append(f"{found[row]} = shufflevector {vector} {first}, {vector} {second}, <{side} x i32> <{mask}>")
        rows, half = found, half // 2
    return rows


def _address(name: str, base: str, row: str, below: int, stride: str, column: str, right: int, width: int) -> list[str]:
    """The place of an element: `below` a row and `right` of a column."""
    return [
        f"{name}.row = add i64 {row}, {below}",
        f"{name}.start = mul i64 {name}.row, {stride}",
        f"{name}.column = add i64 {column}, {right}",
        f"{name}.bytes = mul i64 {name}.column, {width}",
        f"{name}.at = add i64 {name}.start, {name}.bytes",
        f"{name} = getelementptr i8, ptr {base}, i64 {name}.at",
    ]
