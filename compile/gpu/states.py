"""States: the states of a bundle on a device. Steps read and write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bringup.adapters.checkpoints.arrays import bytes_of
from bringup.compile.gpu.driver.driver import Address, Driver, Stream
from bringup.compile.gpu.sizes import nbytes_of
from bringup.compile.gpu.upload import CHUNK
from bringup.compile.program.bind_weights import dtype_of
from bringup.compile.program.program import TensorSpec


class States:
    """Device memory for each state, and a buffer of pinned host memory through which they are copied."""

    def __init__(self, driver: Driver, stream: Stream, specs: Sequence[TensorSpec]) -> None:
        self._driver, self._stream = driver, stream
        self._specs = {spec.name: spec for spec in specs}
        self._places = {spec.name: driver.allocate(nbytes_of(spec), spec.name) for spec in specs}
        self._buffer = driver.pinned(min(CHUNK, max(map(nbytes_of, specs), default=0)))

    def address(self, name: str) -> Address:
        """The device address of a state."""
        return self._places[name]

    def zero(self, names: Iterable[str]) -> None:
        """Fills the named states with zeros, in the stream."""
        for name in names:
            self._driver.zero(self._places[name], nbytes_of(self._specs[name]), self._stream)

    def read(self) -> dict[str, np.ndarray]:
        """A copy of every state, by name."""
        found: dict[str, np.ndarray] = {}
        for name, address in self._places.items():
            spec = self._specs[name]
            found[name] = np.empty(spec.shape, dtype_of(spec.dtype))
            for begin, part in self._parts(found[name]):
                self._driver.copy_out(self._buffer[: len(part)], address + begin, self._stream)
                self._driver.wait(self._stream)
                part[:] = self._buffer[: len(part)]
        return found

    def write_row(self, name: str, row: int, array: np.ndarray) -> None:
        """Overwrites a row of a state, after all work in the stream, and synchronises."""
        spec = self._specs[name]
        self._write(name, row * (nbytes_of(spec) // spec.shape[0]), array)

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites the states in `arrays`, by name, and synchronises."""
        for name, array in arrays.items():
            self._write(name, 0, array)

    def _write(self, name: str, offset: int, array: np.ndarray) -> None:
        """Overwrites a state from byte `offset` on."""
        for begin, part in self._parts(array.astype(dtype_of(self._specs[name].dtype), copy=False)):
            self._buffer[: len(part)] = part
            self._driver.copy_in(self._places[name] + offset + begin, self._buffer[: len(part)], self._stream)
            self._driver.wait(self._stream)

    def _parts(self, array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The bytes of an array in parts that the buffer holds, each with its offset."""
        raw = bytes_of(array)
        for begin in range(0, len(raw), max(len(self._buffer), 1)):
            yield begin, raw[begin : begin + len(self._buffer)]
