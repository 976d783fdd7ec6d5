"""The objects in state dicts: storages, tensors, and the functions that rebuild tensors.

Names and arguments are those of torch/_utils.py, torch/_tensor.py and torch/storage.py, which `torch.save` writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from bringup.adapters.checkpoints.stored import extent, is_addressable
from bringup.adapters.checkpoints.torch_files.pickle_bytes import PickleError
from bringup.adapters.checkpoints.torch_files.pickle_machine import Builder, Global
from bringup.shown import short
from bringup.spec import DTYPES, Shape

MAX_AXES = 64  # torch's limit
MAX_NUMBER = 1 << 62
MAX_DEVICE = 64  # characters
MAX_EXPANDED = 1 << 26  # elements of a view that repeats stored ones

DTYPE_NAMES = {
    **{name: name for name in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")},
    **{name: name for name in ("float8_e8m0fnu", "int64", "int32", "int16", "int8", "bool")},
    **{name: name for name in ("uint64", "uint32", "uint16", "uint8")},
    **{"double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32", "short": "int16"},
}
# Classes of torch/__init__.py that name the dtype of a storage; an untyped one counts bytes.
STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
UNTYPED = ("torch.storage.UntypedStorage", "torch.UntypedStorage", "torch.storage._UntypedStorage")


class Storage(NamedTuple):
    """A run of elements of a file. `base` is the number of elements before it in the storage `key`."""

    key: str
    dtype: str
    numel: int
    base: int = 0


class Tensor(NamedTuple):
    """A view of a storage; offset and strides count elements of `dtype`."""

    storage: Storage
    dtype: str
    offset: int
    shape: Shape
    strides: Shape

    @property
    def nbytes(self) -> int:
        return DTYPES[self.dtype].nbytes(self.shape)


def storage_of(identity: Any) -> Storage:
    """The storage of a persistent id: ("storage", class, key, device, numel[, view]). Raises PickleError."""
    if type(identity) is not tuple or len(cast("tuple[Any, ...]", identity)) not in (5, 6):
        raise PickleError("a persistent id is not that of a storage")
    kind, named, key, _, numel, *rest = cast("tuple[Any, ...]", identity)
    if kind != "storage" or type(named) is not Global or type(key) is not str or not _is_size(numel):
        raise PickleError("a persistent id is not that of a storage")
    dtype = STORAGE_TYPES.get(named.name)
    if dtype is None:
        raise PickleError(f"`{short(named.name)}` is not a storage that bringup reads")
    if not rest or rest[0] is None:
        return Storage(key, dtype, numel)
    view = cast("tuple[Any, ...]", rest[0]) if type(rest[0]) is tuple else ()
    if len(view) != 3 or not all(map(_is_size, view[1:])):
        raise PickleError("a view of a storage is not key, offset and size")
    return Storage(key, dtype, view[2], view[1])


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_NUMBER


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, dtype: str | None, metadata: Any = None) -> Tensor:
    if type(storage) is not Storage or type(shape) is not tuple or type(strides) is not tuple:
        raise PickleError("a tensor is not rebuilt from a storage, a shape and strides")
    sizes, steps = cast("tuple[Any, ...]", shape), cast("tuple[Any, ...]", strides)
    if len(sizes) > MAX_AXES or len(sizes) != len(steps):
        raise PickleError(f"a tensor has {len(sizes)} sizes and {len(steps)} strides")
    if not all(map(_is_size, (offset, *sizes, *steps))):
        raise PickleError("a size, stride or offset of a tensor is not an integer of at least 0")
    if metadata:  # {"conj": True} or {"neg": True}: torch would compute the values
        raise PickleError("a tensor is a conjugate or negative view; save `tensor.resolve_conj().resolve_neg()`")
    element = dtype or storage.dtype
    if not is_addressable(sizes, DTYPES[element].bits // 8):
        raise PickleError(f"a tensor has shape {list(sizes[:8])}")
    have = storage.numel * DTYPES[storage.dtype].bits // DTYPES[element].bits
    if 0 not in sizes and offset + extent(sizes, steps) > have:
        raise PickleError(f"a tensor of shape {list(sizes[:8])} reaches beyond its storage of {have} elements")
    if math.prod(sizes) > max(have, MAX_EXPANDED):
        raise PickleError(f"a tensor of shape {list(sizes[:8])} repeats a storage of {have} elements")
    return Tensor(storage, element, offset, sizes, steps)


def _rebuild_v2(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, metadata: Any = None
) -> Tensor:
    return _tensor(storage, offset, shape, strides, None, metadata)


def _rebuild_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> Tensor:
    named = DTYPE_NAMES.get(dtype.name.removeprefix("torch.")) if type(dtype) is Global else None
    if named is None:
        raise PickleError("a tensor has a dtype that bringup does not read")
    return _tensor(storage, offset, shape, strides, named, metadata)


def _rebuild_v1(storage: Any, offset: Any, shape: Any, strides: Any) -> Tensor:
    return _tensor(storage, offset, shape, strides, None)


def _parameter(data: Any, grad: Any, hooks: Any, state: Any = None) -> Tensor:
    if type(data) is not Tensor:
        raise PickleError("a parameter holds no tensor")
    return data


def _of_type(build: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor or parameter with attributes of its own."""
    rebuild = build.build if type(build) is Global else None
    if rebuild is None or rebuild not in _OF_TENSORS or type(arguments) is not tuple:
        raise PickleError("a tensor is not rebuilt by a function of torch")
    if type(kind) is not Global or kind.name not in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        raise PickleError("a tensor is of another class than torch's; save a plain tensor")
    return rebuild(*cast("tuple[Any, ...]", arguments))


# The functions that `_of_type` may call: not itself, at any depth.
_OF_TENSORS: tuple[Builder, ...] = (_rebuild_v1, _rebuild_v2, _rebuild_v3, _parameter)


def _ordered(items: Any = None) -> dict[Any, Any]:
    """Without arguments, as Python 3 writes it, or from a list of pairs, as Python 2 does."""
    if items is not None and type(items) is not list:
        raise PickleError("an OrderedDict is not built from pairs")
    found: dict[Any, Any] = {}
    for each in cast("list[Any]", items or []):
        pair = cast("list[Any]", each) if isinstance(each, list | tuple) else []
        if len(pair) != 2 or type(pair[0]) is not str:
            raise PickleError("an OrderedDict is not built from pairs")
        found[pair[0]] = pair[1]
    return found


def _size(sizes: Any = ()) -> tuple[Any, ...]:
    if not isinstance(sizes, list | tuple):
        raise PickleError("a torch.Size is not built from numbers")
    return tuple(cast("list[Any]", sizes))


def _device(kind: Any, index: Any = None) -> str:
    """`cuda` and 0, or `cuda:0`."""
    if type(kind) is not str or len(kind) > MAX_DEVICE or not (index is None or _is_size(index)):
        raise PickleError("a torch.device is not built from a short name and a number")
    return kind if index is None else f"{kind}:{index}"


STORAGE_TYPES: dict[str, str] = {
    **{f"torch.{kind}Storage": dtype for kind, dtype in STORAGES.items()},
    **dict.fromkeys(UNTYPED, "uint8"),
}
NAMES: Mapping[str, Builder | None] = {
    "torch._utils._rebuild_tensor": _rebuild_v1,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "collections.OrderedDict": _ordered,
    "torch.Size": _size,
    "torch.device": _device,
    "torch.Tensor": None,
    "torch.nn.parameter.Parameter": _parameter,
    **dict.fromkeys(STORAGE_TYPES, None),
    **{f"torch.{name}": None for name in DTYPE_NAMES},
}
