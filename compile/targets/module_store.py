"""A target's part of the compile cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bringup.compile.cache.store import Inputs, Store


class ModuleStore:
    """Compiled modules by their inputs.

    A target passes only the inputs of one module, such as the digest of a text. `common` has the inputs of every result
    of the target: its options, tools and source files; None if they are unknown, and then nothing is cached.
    """

    def __init__(self, store: Store, common: Callable[[], Inputs | None]) -> None:
        self._store, self._common = store, common
        self._first = common()

    @property
    def store(self) -> Store:
        """The cache itself, for results whose keys contain all their inputs."""
        return self._store

    def get(self, inputs: Mapping[str, str]) -> bytes | None:
        """The module for these inputs; None if it is not in the cache."""
        found = self._inputs(inputs)
        return None if found is None else self._store.get("module", found)

    def put(self, inputs: Mapping[str, str], module: bytes, *, what: str, seconds: float) -> None:
        """Caches a module; `seconds` is its compile time. Nothing is cached if a source file has changed."""
        found = self._inputs(inputs)
        if found is not None and self._first == self._common():
            self._store.put("module", found, module, what=what, seconds=seconds)

    def _inputs(self, inputs: Mapping[str, str]) -> Inputs | None:
        return self._first and {**self._first, **{f"module {name}": value for name, value in inputs.items()}}
