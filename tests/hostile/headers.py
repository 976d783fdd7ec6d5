"""Hostile safetensors files: name → (code, bytes)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random


def framed(header: bytes | object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file; `length` is what stands in front of the header where it is not the header's."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def tensor(**changes: object) -> bytes:
    """A file whose one tensor is spoilt."""
    return framed({"a": entry(**changes)}, b"\0" * 4)


def raw(shape: bytes = b"[4]", offsets: bytes = b"[0,4]", more: bytes = b"") -> bytes:
    """The same with parts that Python's json would not write."""
    return framed(b'{"a":{"dtype":"U8","shape":%s,"data_offsets":%s%s}}' % (shape, offsets, more), b"\0" * 4)


def many(count: int) -> bytes:
    entries = (b'"t%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % number for number in range(count))
    return framed(b"{" + b",".join(entries) + b"}")


LENGTHS = {
    "no byte": ("BU211", b""),
    "seven bytes": ("BU211", b"\0" * 7),
    "random bytes": ("BU211", Random(0).randbytes(100_000)),
    "length 2^60": ("BU211", framed({}, length=1 << 60)),
    "length negative when signed": ("BU211", framed({}, length=(1 << 64) - 1)),
    "length 2^63": ("BU211", framed({}, length=1 << 63)),
    "length over the limit": ("BU211", framed({}, length=100_000_001)),
    "length past the end": ("BU208", framed({}, length=4000)),
    "length by one too long": ("BU208", framed({}, length=3)),
    "length by one too short": ("BU211", framed({}, b"\0", length=1)),
    "length 0": ("BU211", framed(b"", b"{}")),
}
JSON = {
    "not json": ("BU211", framed(b"{]")),
    "a list": ("BU211", framed([])),
    "a number": ("BU211", framed(b"1234")),
    "null": ("BU211", framed(b"null")),
    "text behind the object": ("BU211", framed(b"{} {}")),
    "not utf-8": ("BU211", framed(b'{"\xff":1}')),
    "utf-16": ("BU211", framed('{"a":1}'.encode("utf-16"))),
    "a byte order mark": ("BU211", framed(b"\xef\xbb\xbf{}")),
    "half a character": ("BU211", framed(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}')),
    "deep lists": ("BU211", framed(b"[" * 1_000_000)),
    "deep objects": ("BU211", framed(b'{"a":' * 1_000_000)),
    "a name twice": ("BU211", framed(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), b"\0" * 4)),
    "a key twice": ("BU211", raw(more=b',"shape":[4]')),
    "NaN": ("BU211", raw(more=b',"x":NaN')),
    "a float beyond floats": ("BU211", raw(more=b',"x":1e400')),
    "a number of a million digits": ("BU211", raw(shape=b"[%s]" % (b"9" * 1_000_000))),
    "metadata a list": ("BU211", framed({"__metadata__": []})),
    "metadata a string": ("BU211", framed({"__metadata__": "pt"})),
    "metadata of numbers": ("BU211", framed({"__metadata__": {"format": 1}})),
    "bytes behind the last tensor": ("BU211", framed({"a": entry()}, b"\0" * 5)),
}
ENTRIES = {
    "an entry of null": ("BU212", framed({"a": None})),
    "an entry of text": ("BU212", framed({"a": "F32"})),
    "no offsets": ("BU212", framed({"a": {"dtype": "U8", "shape": [4]}})),
    "unknown dtype": ("BU212", tensor(dtype="U7")),
    "dtype a list": ("BU212", tensor(dtype=["U8"])),
    "dtype null": ("BU212", tensor(dtype=None)),
    "shape null": ("BU212", tensor(shape=None)),
    "shape of text": ("BU212", tensor(shape="4")),
    "shape an object": ("BU212", tensor(shape={"4": 1})),
    "size negative": ("BU212", tensor(shape=[-4])),
    "two sizes negative": ("BU212", tensor(shape=[-2, -2])),
    "size a float": ("BU212", tensor(shape=[4.0])),
    "size true": ("BU212", tensor(shape=[4, True])),
    "size 2^64": ("BU212", tensor(shape=[1 << 64])),
    "sizes that overflow": ("BU212", tensor(shape=[1 << 62, 4, 1 << 62])),
    "sizes that overflow to 4": ("BU212", tensor(shape=[(1 << 62) + 1, 4])),
    "sizes beyond any float": ("BU212", tensor(shape=[(1 << 63) - 1] * 64)),
    "100,000 axes": ("BU212", raw(shape=b"[" + b"9223372036854775807," * 99_999 + b"2]")),
    "offsets reversed": ("BU212", tensor(offsets=[4, 0])),
    "offsets negative": ("BU212", tensor(offsets=[-4, 0])),
    "offsets of floats": ("BU212", tensor(offsets=[0.0, 4.0])),
    "offsets true": ("BU212", tensor(shape=[1], offsets=[False, True])),
    "three offsets": ("BU212", tensor(offsets=[0, 2, 4])),
    "offsets past the end": ("BU208", tensor(shape=[9], offsets=[0, 9])),
    "offsets of 2^62": ("BU212", tensor(offsets=[1 << 62, (1 << 62) + 4])),
    "too few bytes": ("BU212", tensor(shape=[5])),
    "half a byte": ("BU212", tensor(dtype="F4", shape=[7])),
    "overlapping": ("BU212", framed({"a": entry(), "b": entry(offsets=[2, 6])}, b"\0" * 6)),
    "twice the same bytes": ("BU212", framed({"a": entry(), "b": entry()}, b"\0" * 4)),
    "a hole": ("BU212", framed({"a": entry(), "b": entry(offsets=[6, 10])}, b"\0" * 10)),
}
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {  # made when wanted: they are large
    "a million tensors": ("BU211", lambda: many(1_000_000)),
    "half a million keys": ("BU212", lambda: framed(b"{" + b",".join(b'"%d":0' % n for n in range(500_000)) + b"}")),
    "many empty lists": ("BU211", lambda: framed(b'{"a":[' + b"[]," * 5_000_000 + b"0]}")),
    "many objects": ("BU211", lambda: framed(b'{"a":[' + b'{"a":0},' * 2_000_000 + b"0]}")),
    "many numbers": ("BU211", lambda: framed(b'{"a":[' + b"99999999," * 3_000_000 + b"0]}")),
    "a wide text": ("BU211", lambda: framed(b'{"a":"' + b"a" * 30_000_000 + b'\\ud83d\\ude00"}')),
    "a long text": ("BU212", lambda: framed(b'{"a":"' + b"a" * 30_000_000 + b'"}')),
    "a long name": (
        "BU212",
        lambda: framed(b'{"' + b"a" * 1_000_000 + b'":{"dtype":"U9","shape":[],"data_offsets":[0,0]}}'),
    ),
}
SMALL = LENGTHS | JSON | ENTRIES
