# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""`.pt2` files: saves and loads torch.export's format, without redundant work of torch.

Measured with torch 2.13, on layers of 100 operations: two thirds of a save computed a canonical form that is discarded;
half of a load requested the type hints of the same few classes again, and half of the rest created a tensor without
data for each value, although most are equal. The files are those of torch.export.save.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from io import BytesIO
from threading import RLock
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

import torch

from bringup.compile.program.lean_tracing import uncached

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_REPLACING = RLock()  # a replacement in torch affects all threads


def save_archive(program: ExportedProgram) -> bytes:
    """The bytes of a `.pt2` file, without example inputs: torch's safe loader rejects fake tensors."""
    from torch._export.serde import serialize

    inputs, program.example_inputs = program.example_inputs, None
    file = BytesIO()
    with _replaced(serialize, "canonicalize", lambda real: _unchanged):
        torch.export.save(program, file)
    program.example_inputs = inputs
    return file.getvalue()


def load_archive(file: IO[bytes]) -> ExportedProgram:
    """The program of a `.pt2` file, in which values of one shape and dtype share a tensor without data.

    It is for running only: passes that detect aliases by those tensors give wrong results. Raises the errors of
    torch.export.load.
    """
    from torch._export.serde import serialize

    deserializer = getattr(serialize, "GraphModuleDeserializer", None)
    with (
        uncached(),
        _replaced(serialize, "typing", lambda real: _TYPING),
        _replaced(deserializer, "deserialize_tensor_meta", _shared),
    ):
        return torch.export.load(file)


def _unchanged(program: Any, constants: object = None) -> Any:
    return program


def _shared(real: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The method with a cache: one tensor for each shape, strides, dtype and device."""
    tensors: dict[object, Any] = {}

    def deserialize(self: Any, meta: Any) -> Any:
        sizes, strides = (tuple(map(_spelled, each)) for each in (meta.sizes, meta.strides))
        key = self, sizes, strides, meta.dtype, meta.device.type, meta.device.index, meta.requires_grad
        if key not in tensors:
            tensors[key] = real(self, meta)
        return tensors[key]

    return deserialize


def _spelled(size: Any) -> int | str:
    return size.value if size.type == "as_int" else size.value.expr_str


def _typing() -> SimpleNamespace:
    """The module `typing`, with the hints of each class computed once: torch always passes the same names."""
    hints: dict[type, Mapping[str, Any]] = {}

    def get_type_hints(kind: type, **names: Any) -> Mapping[str, Any]:
        if kind not in hints:
            hints[kind] = typing.get_type_hints(kind, **names)
        return hints[kind]

    return SimpleNamespace(**{**vars(typing), "get_type_hints": get_type_hints})


_TYPING = _typing()


@contextmanager
def _replaced(owner: Any, name: str, substitute: Callable[[Any], Any]) -> Generator[None]:
    """Replaces a name in torch's serializer in the block; a no-op if a version of torch has no such name."""
    with _REPLACING:
        real = getattr(owner, name, None)
        if real is not None:
            setattr(owner, name, substitute(real))
        try:
            yield
        finally:
            if real is not None:
                setattr(owner, name, real)
