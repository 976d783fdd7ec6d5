"""The settings of a group of modules in compressed-tensors (`QuantizationScheme`, `QuantizationArgs`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from bringup.adapters.schemes.arrays import BY_MATRIX, BY_ROW
from bringup.graphs.config.fields import Fields
from bringup.graphs.core.form import Block
from bringup.shown import shown

FLOATS = ("float-quantized", "naive-quantized")
# The contents of each format: the kind of values, and their possible widths in bits.
FORMATS = {
    "pack-quantized": {("int", 4), ("int", 8)},
    "int-quantized": {("int", bits) for bits in range(2, 9)},
    "float-quantized": {("float", 8)},
    "naive-quantized": {("float", 8), *(("int", bits) for bits in range(2, 9))},
    "nvfp4-pack-quantized": {("float", 4)},
    "mxfp4-pack-quantized": {("float", 4)},
    "mxfp8-quantized": {("float", 8)},
}
SYMMETRIC = ("float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized")


@dataclass(frozen=True, slots=True)
class Weights:
    """The storage of weights: `format` is that of the group, `block` shares a scale.

    `index`: a separate array has the group of each column.
    """

    format: str
    float: bool
    bits: int
    block: Block
    symmetric: bool
    index: bool


def read_weights(group: Fields, format: str) -> Weights | None:
    """The settings of one of `config_groups`; `format` is the default. None if weights are plain."""
    group.read |= {"input_activations", "output_activations"}
    words = group.group("weights")
    own = group.optional("format", str) or format
    if not words or own == "dense":
        return None
    args = Fields(words, f"{group.family} `weights`")
    args.read |= {"observer", "observer_kwargs", "scale_dtype", "zp_dtype", "is_mse"}
    args.only("dynamic", False)
    kind, bits = args.get("type", str, "int").lower(), args.size("num_bits", 8)
    own = _inferred(kind, bits, words.get("group_size")) if own == "mixed-precision" else own
    if (kind, bits) not in FORMATS.get(own, ()):
        known = ", ".join(f"`{format}`" for format in FORMATS)
        message = f"{group.family} has `format` = {shown(own)} of {kind}{bits}; the supported formats are: {known}"
        group.error("BU122", message, "format", "`pack-quantized` is read for 4 and 8 bits" if own in FORMATS else "")
        own = "naive-quantized"
    symmetric = args.get("symmetric", bool, True)
    if own in SYMMETRIC and not symmetric:
        args.error("BU122", f"{group.family} has zero points in `{own}`, which are not read", "symmetric")
    order: object = args.raw.get("actorder")
    args.only("actorder", None, False, "weight", "static", "group", "dynamic")
    index = order in ("group", "dynamic")
    found = Weights(own, kind == "float", bits, _block(args), symmetric, index)
    if index and own != "pack-quantized":
        args.error("BU122", f"`actorder` = {shown(order)} is read in `pack-quantized` only", "actorder")
    group.findings += args.done()
    return found


def _inferred(kind: str, bits: int, group_size: object) -> str:
    """The format of a group that states none, if formats are mixed (`compressors/format.py`)."""
    if kind == "float":
        small = "mxfp4-pack-quantized" if group_size == 32 else "nvfp4-pack-quantized"
        return small if bits == 4 else "float-quantized"
    return "pack-quantized" if bits < 8 else "int-quantized"


def _block(args: Fields) -> Block:
    """The block that shares a scale, by `strategy`; without one, by `group_size`.

    As in `QuantizationArgs`, words may have capitals, and the block may be a string, as in early versions: "128x128".
    """
    size = args.optional("group_size", int)
    inferred = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = args.get("strategy", str, inferred, null=inferred).lower()
    structure = cast("object", args.raw.get("block_structure"))
    if isinstance(structure, str) and (early := re.fullmatch(r"(\d{1,9})x(\d{1,9})", structure)):
        structure = [int(early[1]), int(early[2])]
    args.read |= {"block_structure"}
    match strategy, size, structure:
        case "tensor", _, _:
            return BY_MATRIX
        case "channel", _, _:
            return BY_ROW
        case "group" | "tensor_group", int() as columns, _ if columns > 0:
            return 1, columns
        case "block", _, [int() as rows, int() as columns] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            sizes = f"`group_size` = {shown(size)}, `block_structure` = {shown(structure)}"
            args.error("BU121", f"{args.family} has `strategy` = {shown(strategy)} with {sizes}", "strategy", stops="")
            return BY_ROW
