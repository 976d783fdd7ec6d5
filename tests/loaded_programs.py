"""Traced programs that the tests of one pytest worker share, because reading one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from typing import IO, Any

MOST = 300  # programs held: one has about a megabyte

Load = Callable[[IO[bytes]], Any]


class LoadedPrograms:
    """Reads a `.pt2` file by `load`, unless one with the same bytes was read before.

    A program has no weights and no states, and an executor of it makes a module of its own.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._programs: dict[bytes, Any] = {}  # the last used last

    def __call__(self, file: IO[bytes]) -> Any:
        data = file.read()
        key = sha256(data).digest()
        program = self._programs.pop(key, None) or self._load(BytesIO(data))
        self._programs[key] = program
        while len(self._programs) > MOST:
            del self._programs[next(iter(self._programs))]
        return program
