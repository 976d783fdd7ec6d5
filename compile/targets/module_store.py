"""A target's part of the compile cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bringup.compile.cache.store import Inputs, Store


class ModuleStore:
    """Compiled modules by what they were compiled from.

    A target names only what it compiles, such as the digest of a text. `common` gives what decides every result of the
    target: its options, tools and source files; None where that is unknown, and then nothing is cached.
    """

    def __init__(self, store: Store, common: Callable[[], Inputs | None]) -> None:
        self._store, self._common = store, common
        self._first = common()

    @property
    def store(self) -> Store:
        """The cache itself, for results whose keys have all that decides them."""
        return self._store

    def get(self, inputs: Mapping[str, str]) -> bytes | None:
        """The module of these inputs; None when it is not in the cache."""
        found = self._inputs(inputs)
        return None if found is None else self._store.get("module", found)

    def put(self, inputs: Mapping[str, str], module: bytes, *, what: str, seconds: float) -> None:
        """Caches a module; `seconds` is how long it took to compile. Nothing is cached if a source file has changed."""
        found = self._inputs(inputs)
        if found is not None and self._first == self._common():
            self._store.put("module", found, module, what=what, seconds=seconds)

    def _inputs(self, inputs: Mapping[str, str]) -> Inputs | None:
        return self._first and {**self._first, **{f"module {name}": value for name, value in inputs.items()}}
