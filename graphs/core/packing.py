"""How sub-byte values are stored: several along one axis in an integer word, the first in its low bits."""

from __future__ import annotations

from typing import NamedTuple

from bringup.diagnostics import fail
from bringup.graphs.core.axes import Axes, shape_of, show
from bringup.spec import DTYPES, Shape

# The dtype that holds so many bits. An 8-bit word has no sign, as in the published formats.
WORDS = {8: "uint8", 16: "int16", 32: "int32", 64: "int64"}


class Pack(NamedTuple):
    """`values` values along `axis` in one word."""

    axis: str
    values: int


def read_pack(text: str, axes: Axes, dtype: str | None) -> Pack | None:
    """Parses the pack of a `Param`, such as `out:8`; "" packs nothing. Raises BU302 for an invalid one."""
    if not text:
        return None
    name, colon, count = text.partition(":")
    if not (name and colon and count.isascii() and count.isdigit() and int(count)):
        raise _bad(text, "is not an axis and a number", 'write pack="out:8": eight values along `out` to a word')
    pack = Pack(name, int(count))
    if fault := misfit(pack, axes, dtype):
        raise _bad(text, *fault)
    return pack


def misfit(pack: Pack, axes: Axes, dtype: str | None) -> tuple[str, str] | None:
    """The error of a pack, and the fix; None if it is valid."""
    outer = {axis.name: axis.size for axis in axes if axis.name}
    name, count = pack
    if name not in outer:
        inner = any(node.name == name for axis in axes for node in axis.walk())
        shown = show(axes)
        message = f"`{name}` is a part of an axis of `{shown}`" if inner else f"`{shown}` has no axis `{name}`"
        return message, f"pack along one of: {', '.join(outer)}"
    if count < 1 or not outer[name] or outer[name] % count:
        return f"axis `{name}` has {outer[name]} values", "the number must divide the axis"
    if dtype is None or DTYPES[dtype].block or DTYPES[dtype].bits >= 8:
        return (
            f"values of {dtype or 'the dtype of the model'} fill whole bytes",
            'give a sub-byte dtype, such as "int4"',
        )
    bits = DTYPES[dtype].bits
    if count * bits not in WORDS:
        counts = ", ".join(str(size // bits) for size in WORDS)
        return f"{count} values of {bits} bits are a word of {count * bits}", f"pack one of: {counts} values"
    return None


def stored(axes: Axes, dtype: str, pack: Pack | None) -> tuple[Shape, str]:
    """Shape and dtype of the array that holds a parameter: its own, or those of its words."""
    if pack is None:
        return shape_of(axes), dtype
    shape = tuple(axis.size // pack.values if axis.name == pack.axis else axis.size for axis in axes)
    return shape, WORDS[pack.values * DTYPES[dtype].bits]


def _bad(text: str, message: str, help: str) -> Exception:
    return fail("BU302", f"pack `{text}` does not fit: {message}", help=help)
