"""Staging: the fields of a step in one block of pinned host memory, copied to one block of device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bringup.compile.gpu.driver.driver import Address, Driver, Stream
from bringup.compile.program.bind_weights import dtype_of
from bringup.compile.program.program import TensorSpec

ALIGNMENT = 256  # bytes, as in the arena


@dataclass(frozen=True, slots=True)
class Field:
    """A tensor at `offset`, in bytes, of a block."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Staging:
    """Tensors in a block of the host and a block of the device, with equal offsets."""

    def __init__(self, driver: Driver, specs: Sequence[TensorSpec], name: str) -> None:
        self._fields: dict[str, Field] = {}
        end = 0
        for spec in specs:
            field = Field(end, spec.shape, dtype_of(spec.dtype))
            self._fields[spec.name] = field
            end += -(-max(field.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        self._host = driver.pinned(end)
        self._host[:] = 0
        self._begin = driver.allocate(end, name)

    def address(self, name: str) -> Address:
        """The device address of a field."""
        return self._begin + self._fields[name].offset

    def fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes every field on the host. A shorter array is padded with zeros at the end of each axis."""
        for name, field in self._fields.items():
            view = self._view(field)
            given = np.asarray(arrays[name], field.dtype)
            if given.shape == field.shape:
                view[...] = given
            else:
                view[...] = 0
                view[tuple(slice(size) for size in given.shape)] = given

    def copy_in(self, driver: Driver, stream: Stream) -> None:
        """Copies the block to the device, in the stream."""
        driver.copy_in(self._begin, self._host, stream)

    def _view(self, field: Field) -> np.ndarray:
        raw = self._host[field.offset : field.offset + field.nbytes]
        return raw.view(field.dtype).reshape(field.shape)
