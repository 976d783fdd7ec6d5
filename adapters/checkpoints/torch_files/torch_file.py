"""A file of torch.save: its tensors, and the offsets of their elements.

The layouts are those of torch/serialization.py. *Zip*, since torch 1.6: `NAME/data.pkl`, each storage unchanged in
`NAME/data/KEY`, and `NAME/byteorder`. *Legacy*: three pickles (a number, a version, facts on the machine), the object,
the list of keys, then each storage as its number of elements and its bytes, both little-endian whatever the machine
(torch/csrc/serialization.cpp). Both layouts are read without torch, and no pickle is executed: see
`pickle_machine.py`.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from bringup.adapters.checkpoints.files import (
    SAFETENSORS,
    is_safetensors,
    opened,
    other_content,
    refuse_lfs_pointer,
    too_short,
)
from bringup.adapters.checkpoints.stored import Stored, extent, is_row_major
from bringup.adapters.checkpoints.torch_files.objects import DTYPE_NAMES, NAMES, Storage, Tensor, storage_of
from bringup.adapters.checkpoints.torch_files.pickle_bytes import PickleError
from bringup.adapters.checkpoints.torch_files.pickle_machine import Builder, unpickle
from bringup.adapters.checkpoints.zip_container import MAGIC as ZIP
from bringup.adapters.checkpoints.zip_container import STORED, read_member, read_zip
from bringup.diagnostics import BringupError, fail
from bringup.grouping import some
from bringup.shown import short
from bringup.spec import DTYPES, TensorInfo

LEGACY = 0x1950A86A20F9469CFC6C  # torch.serialization.MAGIC_NUMBER
PROTOCOL = 1001  # torch.serialization.PROTOCOL_VERSION
MAX_PICKLE = 16 << 20  # bytes; 20,000 tensors take 4 MB
MAX_NAME = 1000  # characters of a tensor's name
AGAIN = "the file is damaged or was not written by torch.save: download it again, or save it again as safetensors"
STATE = "save the state dict alone: `torch.save(model.state_dict(), FILE)`, or save it as safetensors"

# Dtypes of torch that are not in DTYPE_NAMES: complex and quantised numbers, other float8, numbers of less than a byte.
OTHER_DTYPES = re.compile(r"torch\.((complex|float|q?u?int|bits)\d\w*|(Complex|Q)\w+Storage)")


class TorchFile(NamedTuple):
    """The tensors of a file; `stored` has the storage of those that are not plain. `shared` share bytes with another.

    `dropped` are the keys of values that are not tensors, such as the number of an epoch.
    """

    headers: dict[str, TensorInfo]
    stored: dict[str, Stored]
    shared: tuple[str, ...]
    dropped: tuple[str, ...]


class _Place(NamedTuple):
    """The position of a storage in the file."""

    offset: int
    nbytes: int


def read_torch(path: Path) -> TorchFile:
    """Reads the list of tensors, and no tensor. Raises BU203, BU204, BU206, BU209, BU233."""
    refuse_lfs_pointer(path)
    with opened(path) as file:
        head = file.read(len(ZIP))
    try:
        if head == ZIP:
            return _zip(path)
        if head[:1] == b"\x80":  # PROTO, which begins every pickle
            return _legacy(path)
    except PickleError as error:
        if not error.name:
            raise _bad(path, str(error)) from None
        if OTHER_DTYPES.fullmatch(error.name):
            help = f"save its tensors in a dtype that bringup reads: {', '.join(dict.fromkeys(DTYPE_NAMES.values()))}"
            raise _bad(path, f"a tensor has the dtype `{error.name}`, which bringup does not read", help) from None
        raise fail(
            "BU204",
            f"`{path}` refers to `{error.name}`, which is not part of a state dict; no code of it was run",
            help=f"do not load this file unless you trust who wrote it; {STATE}",
            file=str(path),
        ) from None
    if other := SAFETENSORS if is_safetensors(path) else other_content(path):
        raise _bad(path, f"it is {other[0]}", other[1])
    raise _bad(path, too_short(path) or "it begins neither as the zip layout nor as the legacy one")


def _zip(path: Path) -> TorchFile:
    members = read_zip(path)
    found = [name for name in members if name.endswith("/data.pkl")]
    if len(found) != 1:
        raise _bad(path, f"it is an archive with {len(found)} members `data.pkl`; torch.save writes one")
    folder, pickled = found[0].removesuffix("data.pkl"), members[found[0]]
    if f"{folder}constants.pkl" in members:
        raise _bad(path, "it is a TorchScript program", STATE)
    if pickled.nbytes > MAX_PICKLE or pickled.method != STORED:
        raise _bad(path, f"`{short(pickled.name)}` has {pickled.nbytes:,} bytes; the limit is {MAX_PICKLE:,}, stored")
    root, _ = unpickle(read_member(path, pickled, MAX_PICKLE), 0, NAMES, storage_of)
    order = members.get(f"{folder}byteorder")
    word = read_member(path, order, 16) if order else b"little"
    if word not in (b"little", b"big"):
        raise _bad(path, "its byte order is neither little nor big")
    places: dict[str, _Place] = {}
    tensors, dropped = _state_dict(path, root)
    for tensor in tensors.values():
        key = tensor.storage.key
        member = members.get(f"{folder}data/{key}")
        if member is None:
            raise _bad(path, f"it has no storage `{short(key)}`, which a tensor views")
        if member.method != STORED:
            raise _bad(path, f"`{short(member.name)}` is compressed; torch.save does not compress it", AGAIN)
        places[key] = _Place(member.offset, member.nbytes)
    return _located(path, tensors, places, dropped, big_endian=word == b"big")


def _legacy(path: Path) -> TorchFile:
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        with mmap.mmap(file.fileno(), min(size, MAX_PICKLE), access=mmap.ACCESS_READ) as data:
            magic, at = unpickle(data, 0, _NO_NAMES, _none)
            if magic != LEGACY:
                raise _bad(path, "it is a pickle that torch.save did not write", STATE)
            version, at = unpickle(data, at, _NO_NAMES, _none)
            if version != PROTOCOL:
                raise _bad(path, "its version is not 1001, the only one of the legacy layout")
            facts, at = unpickle(data, at, _NO_NAMES, _none)
            if type(facts) is not dict:
                raise _bad(path, "it does not state the kind of machine that wrote it")
            kinds: dict[str, int] = {}
            root, at = unpickle(data, at, NAMES, lambda identity: _legacy_storage(identity, kinds))
            keys, at = unpickle(data, at, _NO_NAMES, _none)
        if type(keys) is not list or not all(type(key) is str for key in cast("list[Any]", keys)):
            raise _bad(path, "its keys of storages are not a list of strings")
        places: dict[str, _Place] = {}
        for key in cast("list[str]", keys):
            file.seek(at)
            count = file.read(8)
            if key not in kinds or len(count) < 8 or key in places:
                raise _bad(path, f"its storage `{short(key)}` is missing, duplicated or not part of a tensor")
            (numel,) = struct.unpack("<q", count)
            if not 0 <= numel * kinds[key] <= size - at - 8:
                raise _bad(path, f"its storage `{short(key)}` of {numel} elements does not fit into the file")
            places[key] = _Place(at + 8, numel * kinds[key])
            at += 8 + numel * kinds[key]
    tensors, dropped = _state_dict(path, root)
    return _located(path, tensors, places, dropped, big_endian=False)


_NO_NAMES: Mapping[str, Builder | None] = {}


def _none(identity: Any) -> Any:
    raise PickleError("it refers to a storage before the first one")


def _legacy_storage(identity: Any, kinds: dict[str, int]) -> Storage:
    """The storage; `kinds` records the size of its elements, which determines where the next one begins."""
    storage = storage_of(identity)
    width = DTYPES[storage.dtype].bits // 8
    if kinds.setdefault(storage.key, width) != width:
        raise PickleError(f"storage `{short(storage.key)}` has two dtypes")
    return storage


def _state_dict(path: Path, root: Any) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors by name, and the names of other values.

    They are in the object itself, or in the one dict of it that has more tensors, such as `state_dict` or `model`: a
    checkpoint of a training run may have a few tensors of its own, such as the state of a random generator.
    """
    if type(root) is not dict:
        raise _bad(path, "it holds no dict of tensors", STATE)
    words = cast("dict[Any, Any]", root)
    tensors = _tensors(words)
    inner = {key: found for key, value in words.items() if len(found := _tensors(value)) > len(tensors)}
    if len(inner) > 1:
        raise _bad(path, f"it holds several dicts of tensors: {some(map(str, inner))}", STATE)
    if inner:
        ((name, tensors),) = inner.items()
        words = {key: value for key, value in words.items() if key != name}
    if not tensors:
        raise _bad(path, "it holds no dict of tensors", STATE)
    if too_long := next((name for name in tensors if len(name) > MAX_NAME), None):
        raise _bad(path, f"the name `{short(too_long)}` is longer than {MAX_NAME} characters")
    return tensors, tuple(str(key) for key in words if inner or key not in tensors)


def _tensors(value: Any) -> dict[str, Tensor]:
    words = cast("dict[Any, Any]", value) if type(value) is dict else {}
    return {name: value for name, value in words.items() if type(value) is Tensor and type(name) is str}


def _located(
    path: Path, tensors: Mapping[str, Tensor], places: Mapping[str, _Place], dropped: tuple[str, ...], big_endian: bool
) -> TorchFile:
    headers: dict[str, TensorInfo] = {}
    stored: dict[str, Stored] = {}
    for name, (storage, dtype, offset, shape, strides) in tensors.items():
        place = places.get(storage.key)
        if place is None:
            raise _bad(path, f"it has no storage `{short(storage.key)}`, which `{short(name)}` views")
        width = DTYPES[dtype].bits // 8
        base = storage.base * DTYPES[storage.dtype].bits // 8
        begin, span = base + offset * width, extent(shape, strides) * width
        if begin + span > place.nbytes:
            raise _bad(path, f"`{short(name)}` ends at byte {begin + span} of a storage of {place.nbytes}")
        plain = is_row_major(shape, strides) and not (big_endian and width > 1)
        nbytes = DTYPES[dtype].nbytes(shape)
        headers[name] = TensorInfo(name, dtype, shape, path, place.offset + begin, nbytes, plain)
        if not plain:
            stored[name] = Stored(strides, span, big_endian)
    count = Counter(tensor.storage.key for tensor in tensors.values())
    shared = tuple(name for name, tensor in tensors.items() if count[tensor.storage.key] > 1)
    return TorchFile(headers, stored, shared, dropped)


def _bad(path: Path, why: str, help: str = AGAIN) -> BringupError:
    return fail("BU203", f"`{path}` is not a state dict that bringup supports: {why}", help=help, file=str(path))
