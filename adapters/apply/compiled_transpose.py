# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Transposes of large matrices by vector instructions, if llvmlite is installed.

numpy's inner loop moves one element at a time: for elements of 2 bytes that is a fifth of the speed of a copy. Here a
square block that fits into vector registers is transposed by perfect shuffles (Stone, Parallel processing with the
perfect shuffle, IEEE Transactions on Computers C-20, 1971): log2(side) times, the elements of each row of the upper
half are interleaved with those of the corresponding row of the lower half. Each such pair of rows takes two
instructions. Vectors have 16 bytes, which every x86-64 and ARM64 processor supports.

A band of rows is read one cache line at a time into a strip that stays in the L1 cache; the next lines of the same rows
are prefetched. Then each row of the strip is written as one run, with non-temporal stores if it is aligned, as in large
copies: if rows are a power of two apart, runs of 256 bytes and more are written three times as fast as single lines.
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
RUN = 512  # bytes of a row of the target that are written at once
LEAST = 1 << 22  # bytes: for less, compilation takes longer than numpy
Transpose = Callable[[int, int, int, int, int, int], None]


def transpose(target: np.ndarray, source: np.ndarray) -> bool:
    """Transposes a matrix in memory: copies `source` to `target`, and returns whether it did.

    Both have the same shape; elements are adjacent along the columns of `source` and along the rows of `target`.
    Returns False, with nothing written, if the matrix is small, its elements are cast or have other than 1, 2, 4 or 8
    bytes, or llvmlite is not installed.
    """
    width, (rows, columns) = source.itemsize, source.shape
    if target.dtype != source.dtype or width not in (1, 2, 4, 8) or source.nbytes < LEAST or not installed():
        return False
    side = LINE // width
    whole = rows // side * side
    aligned = target.ctypes.data % VECTOR == target.strides[1] % VECTOR == 0
    for first, last in _spans(columns, side, -source.ctypes.data % LINE // width) if whole else ():
        to, of = target.ctypes.data + first * target.strides[1], source.ctypes.data + first * width
        _function(width, aligned)(to, of, whole, last - first, target.strides[1], source.strides[0])
    rest = whole if columns >= side else 0
    target[rest:] = source[rest:]
    return True


def _spans(columns: int, side: int, line: int) -> list[tuple[int, int]]:
    """Columns in multiples of `side`, most from `line` on, where a cache line begins; both ends may overlap."""
    if columns < side:
        return []
    start = line if line + side <= columns else 0
    end = start + (columns - start) // side * side
    return [(0, side)] * (start > 0) + [(start, end)] + [(columns - side, columns)] * (end < columns)


@cache
def installed() -> bool:
    """Whether llvmlite is installed."""
    return find_spec("llvmlite") is not None


@cache
def _function(width: int, aligned: bool) -> Transpose:
    """The compiled function of addresses, rows, columns, and the row strides in bytes of target and source."""
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


_ENGINES: list[object] = []  # the owners of the functions' memory


def text(width: int, aligned: bool) -> str:
    """The function as LLVM IR, for elements of `width` bytes; `aligned`: rows of the target are."""
    write = _loop("across", "0", str(LINE // width), 1, _loop("along", "0", "%run", LINE, _line(width, aligned)))
    read = _loop("row", "%band", "%band.end", VECTOR // width, _blocks(width))
    band = [
        f"%band.full = add i64 %band, {RUN // width}",
        "%band.less = icmp slt i64 %band.full, %rows",
        "%band.end = select i1 %band.less, i64 %band.full, i64 %rows",
        "%band.rows = sub i64 %band.end, %band",
        f"%run = mul i64 %band.rows, {width}",
        *_loop("column", "0", "%columns", LINE // width, [*read, *write]),
    ]
    parameters = "ptr noalias %target, ptr noalias %source, i64 %rows, i64 %columns, i64 %target.row, i64 %source.row"
    strip = f"%strip = alloca [{LINE // width * RUN} x i8], align {LINE}"
    bands = _loop("band", "0", "%rows", RUN // width, band)
    others = ["declare void @llvm.prefetch.p0(ptr, i32, i32, i32)", "!0 = !{i32 1}"]
    return "\n".join([f"define void @transpose({parameters}) {{", strip, *bands, "ret void", "}", *others])


def _loop(name: str, start: str, end: str, step: int, body: list[str]) -> list[str]:
    """A loop with the variable `%name` from `start` up to, but not including, `end`."""
    return [
        f"br label %{name}.enter",
        f"{name}.enter:",
        f"br label %{name}.head",
        f"{name}.head:",
        f"%{name} = phi i64 [ {start}, %{name}.enter ], [ %{name}.next, %{name}.again ]",
        f"%{name}.inside = icmp slt i64 %{name}, {end}",
        f"br i1 %{name}.inside, label %{name}.body, label %{name}.leave",
        f"{name}.body:",
        *body,
        f"br label %{name}.again",
        f"{name}.again:",
        f"%{name}.next = add i64 %{name}, {step}",
        f"br label %{name}.head",
        f"{name}.leave:",
    ]


def _blocks(width: int) -> list[str]:
    """Adjacent blocks, as wide as a cache line, from row `%row` and column `%column`: loaded, shuffled, stored in the
    strip.

    The next line is prefetched for the next column, by the address of the last byte that it will read.
    """
    side = VECTOR // width
    vector = f"<{side} x i{8 * width}>"
    lines = ["%row.inside.band = sub i64 %row, %band"]
    for row in range(side):
        lines += _address(f"%ahead{row}", "%source", "%row", row, "%source.row", "%column", 2 * LINE - 1, width)
        lines.append(f"call void @llvm.prefetch.p0(ptr %ahead{row}, i32 0, i32 2, i32 1)")
    for block in range(LINE // VECTOR):
        rows = [f"%in{block}.{row}" for row in range(side)]
        for row, name in enumerate(rows):
            place = f"%from{block}.{row}"
            lines += _address(place, "%source", "%row", row, "%source.row", "%column", block * VECTOR, width)
            lines.append(f"{name} = load {vector}, ptr {place}, align {width}")
        for row, name in enumerate(_shuffled(rows, f"%shuffled{block}", vector, lines)):
            place, below = f"%to{block}.{row}", block * side + row
            lines += _address(place, "%strip", "0", below, str(RUN), "%row.inside.band", 0, width)
            lines.append(f"store {vector} {name}, ptr {place}, align {VECTOR}")
    return lines


def _line(width: int, aligned: bool) -> list[str]:
    """A cache line of the strip's row `%across`, from byte `%along`, stored to its row of the target."""
    store = f"align {VECTOR}, !nontemporal !0" if aligned else f"align {width}"
    lines = ["%target.column = add i64 %column, %across"]
    lines += _address("%out", "%target", "%target.column", 0, "%target.row", "%band", 0, width)
    lines += _address("%done", "%strip", "%across", 0, str(RUN), "0", 0, width)
    for byte in range(0, LINE, VECTOR):
        lines += [
            f"%along.{byte} = add i64 %along, {byte}",
            f"%done.{byte} = getelementptr i8, ptr %done, i64 %along.{byte}",
            f"%out.{byte} = getelementptr i8, ptr %out, i64 %along.{byte}",
            f"%vector.{byte} = load <{VECTOR} x i8>, ptr %done.{byte}, align {VECTOR}",
            f"store <{VECTOR} x i8> %vector.{byte}, ptr %out.{byte}, {store}",
        ]
    return lines


def _shuffled(rows: list[str], name: str, vector: str, lines: list[str]) -> list[str]:
    """The rows of a transposed block; their shuffles are appended to `lines`."""
    side = len(rows)
    for step in range(side.bit_length() - 1):
        found = [f"{name}.{step}.{row}" for row in range(side)]
        for row, result in enumerate(found):
            first, lanes = row // 2, range(row % 2 * side // 2, (row % 2 + 1) * side // 2)
            mask = ", ".join(f"i32 {lane}, i32 {lane + side}" for lane in lanes)
            pair = f"{vector} {rows[first]}, {vector} {rows[first + side // 2]}"
            lines.append(f"{result} = shufflevector {pair}, <{side} x i32> <{mask}>")
        rows = found
    return rows


def _address(name: str, base: str, row: str, below: int, stride: str, column: str, right: int, width: int) -> list[str]:
    """The address of an element: `below` a row, and `right` bytes after a column."""
    return [
        f"{name}.row = add i64 {row}, {below}",
        f"{name}.start = mul i64 {name}.row, {stride}",
        f"{name}.column = mul i64 {column}, {width}",
        f"{name}.bytes = add i64 {name}.column, {right}",
        f"{name}.at = add i64 {name}.start, {name}.bytes",
        f"{name} = getelementptr i8, ptr {base}, i64 {name}.at",
    ]
