"""The tensors of a GGUF file: names, row-major shapes, dtypes and offsets."""

from __future__ import annotations

from pathlib import Path

from bringup.adapters.checkpoints.files import is_local, truncated
from bringup.adapters.checkpoints.gguf import MOST_BYTES, MOST_NAME, Cursor, Metadata, bad_header, begin, unsupported
from bringup.diagnostics import BringupError, fail
from bringup.spec import DTYPES, TensorInfo

PREFIX = 256 << 10  # bytes of a file behind HTTP that are read first
MAX_DIMS = 4  # GGML_MAX_DIMS

# `enum ggml_type` of ggml.h
TYPES = {
    0: "float32", 1: "float16", 30: "bfloat16", 28: "float64",
    24: "int8", 25: "int16", 26: "int32", 27: "int64",
    2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0",
    10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k",
    16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs",
    29: "iq1_m", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4",
}  # fmt: skip
UNREAD = {9: "Q8_1", 15: "Q8_K", 41: "Q1_0"}  # the `gguf` package has sizes for these, but cannot read them


def read_gguf(path: Path) -> tuple[Metadata, dict[str, TensorInfo]]:
    """Metadata and tensors; shapes are row-major (GGUF's `ne`, reversed). Raises BU206, BU208, BU22x."""
    prefix = 0 if is_local(path) else PREFIX
    while True:
        try:
            return _read(path, prefix)
        except BringupError as error:
            if error.findings[0].code != "BU208" or prefix in (0, MOST_BYTES) or prefix >= path.stat().st_size:
                raise
            prefix = min(prefix * 4, MOST_BYTES)


def _read(path: Path, prefix: int) -> tuple[Metadata, dict[str, TensorInfo]]:
    meta, cursor, count = begin(path, prefix)
    splits = meta.scalar("split.count", 0)
    if isinstance(splits, int) and splits > 1:
        help = f"join the files first: llama-gguf-split --merge {path} JOINED.gguf"
        raise unsupported(path, f"is one of the {splits} files of a split model", help)
    alignment = meta.scalar("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & alignment - 1:
        raise bad_header(path, f"`general.alignment` is {alignment!r}; expected a power of two")
    infos: dict[str, TensorInfo] = {}
    for _ in range(count):
        info = _tensor(cursor)
        if info.name in infos:
            raise _bad(path, info.name, "occurs twice in the header")
        infos[info.name] = info
    base = -(-cursor.position // alignment) * alignment
    return meta, _placed(path, infos, base, alignment)


def _tensor(cursor: Cursor) -> TensorInfo:
    """One tensor info; its offset is relative to the first tensor."""
    path, name, dims = cursor.path, cursor.text(MOST_NAME), cursor.number("I")
    if dims > MAX_DIMS:
        raise _bad(path, name, f"has {dims} dimensions; GGUF has at most {MAX_DIMS}")
    shape = tuple(cursor.number("Q") for _ in range(dims))[::-1]
    kind, offset = cursor.number("I"), cursor.number("Q")
    if kind in UNREAD:
        help = "bringup reads " + ", ".join(sorted(TYPES.values())) + "; requantise with llama-quantize"
        raise unsupported(path, f"has `{name}` in type {UNREAD[kind]}, which bringup does not read", help)
    if kind not in TYPES:
        raise _bad(path, name, f"has type {kind}, which ggml does not define")
    dtype = DTYPES[TYPES[kind]]
    if dtype.block and (not shape or shape[-1] % dtype.block[0]):
        raise _bad(path, name, f"has shape {list(shape)}; {dtype.name} stores rows in blocks of {dtype.block[0]}")
    return TensorInfo(name, dtype.name, shape, path, offset, dtype.nbytes(shape), fixed_rank=False)


def _placed(path: Path, infos: dict[str, TensorInfo], base: int, alignment: int) -> dict[str, TensorInfo]:
    """Tensors with offsets from the file's start: aligned, not overlapping, inside the file."""
    end, last, size = 0, "", path.stat().st_size
    for info in sorted(infos.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset % alignment:
            raise _bad(path, info.name, f"begins at byte {info.offset}, not at a multiple of {alignment}")
        if info.offset < end:
            raise _bad(path, info.name, f"overlaps `{last}`, which ends at byte {end} of the data")
        end, last = info.offset + info.nbytes, info.name
    if base + end > size and infos:
        raise truncated(path, base + end)
    return {name: info._replace(offset=base + info.offset) for name, info in infos.items()}


def _bad(path: Path, name: str, why: str) -> BringupError:
    help = "the file is damaged or was not written by a GGUF library; fetch or convert it again"
    return fail("BU222", f"tensor `{name}` of `{path}` {why}", help=help, file=str(path), sources=(name,))
