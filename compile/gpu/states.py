"""States: the states of a bundle on a device. Steps read and write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bringup.adapters.checkpoints.arrays import bytes_of
from bringup.compile.gpu.driver.driver import Address, Driver, Stream
from bringup.compile.gpu.sizes import nbytes_of
from bringup.compile.program.bind_weights import dtype_of
from bringup.compile.program.program import TensorSpec


class States:
    """Device memory for each state, and pinned host memory through which they are copied."""

    def __init__(self, driver: Driver, stream: Stream, specs: Sequence[TensorSpec]) -> None:
        self._driver, self._stream = driver, stream
        self._specs = {spec.name: spec for spec in specs}
        self._places = {spec.name: driver.allocate(nbytes_of(spec), spec.name) for spec in specs}
        self._copies = driver.pinned(max(map(nbytes_of, specs), default=0))

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
            raw = self._copies[: nbytes_of(spec)]
            if len(raw):
                self._driver.copy_out(raw, address, self._stream)
                self._driver.wait(self._stream)
            found[name] = raw.copy().view(dtype_of(spec.dtype)).reshape(spec.shape)
        return found

    def write_row(self, name: str, row: int, array: np.ndarray) -> None:
        """Overwrites a row of a state, after all work in the stream, and synchronises."""
        spec = self._specs[name]
        each = nbytes_of(spec) // spec.shape[0]
        raw = self._copies[:each]
        raw[:] = bytes_of(array.astype(dtype_of(spec.dtype), copy=False))
        self._driver.copy_in(self._places[name] + row * each, raw, self._stream)
        self._driver.wait(self._stream)

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites the states in `arrays`, by name, and synchronises."""
        for name, array in arrays.items():
            spec = self._specs[name]
            raw = self._copies[: nbytes_of(spec)]
            raw[:] = bytes_of(array.astype(dtype_of(spec.dtype), copy=False))
            if len(raw):
                self._driver.copy_in(self._places[name], raw, self._stream)
                self._driver.wait(self._stream)
