"""A checkpoint's tensors by the names that rules use, with a prefix resolved."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from bringup.spec import TensorInfo

if TYPE_CHECKING:
    from bringup.adapters.algebra.region import Region
    from bringup.adapters.algebra.scope import Scope


class Names:
    """Headers by the names that rules use. `prefixes` are first sections that a checkpoint may have or lack.

    `outside` are first sections without a prefix even in a checkpoint that has one, such as the head's.
    """

    def __init__(
        self, headers: Mapping[str, TensorInfo], prefixes: tuple[str, ...] = (), outside: Collection[str] = ()
    ) -> None:
        self.headers = headers
        self.prefixes = prefixes
        self.carried = next((prefix for prefix in prefixes if any(name.startswith(prefix) for name in headers)), "")
        self.outside = outside

    def bare(self, name: str) -> str:
        """A tensor's name without its prefix."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return name[len(prefix) :]
        return name

    def behind(self, name: str) -> list[TensorInfo | str]:
        """The tensors of a name, in order; if there is none, the expected name."""
        if info := self._bare(name) or self.headers.get(self.carried + name) or self.get(name):
            return [info]
        return [name if name.partition(".")[0] in self.outside else self.carried + name]

    def found(self, names: Sequence[str]) -> tuple[list[TensorInfo], tuple[str, ...]]:
        """The tensors of names, in order; and the names without a tensor."""
        if there := self._all(names):
            return there, ()
        behind = [one for name in names for one in self.behind(name)]
        absent = dict.fromkeys(one for one in behind if isinstance(one, str))
        return [one for one in behind if not isinstance(one, str)], tuple(absent)

    def _all(self, names: Sequence[str]) -> list[TensorInfo] | None:
        """A fast path of `found` for the usual case: all tensors exist and have the same prefix."""
        found = [*map(self.headers.get, [self.carried + name for name in names])]
        if all(found) and (not self.carried or self.headers.keys().isdisjoint(names)):
            return cast("list[TensorInfo]", found)
        return None

    def get(self, name: str) -> TensorInfo | None:
        """The tensor of that name. A tensor without a prefix takes precedence over one with it."""
        if info := self._bare(name):
            return info
        for prefix in self.prefixes:
            if info := self.headers.get(prefix + name):
                return info
        return None

    def _bare(self, name: str) -> TensorInfo | None:
        """The tensor with exactly this name, without a prefix."""
        return None if name.startswith(self.prefixes) else self.headers.get(name)

    def planned(self, name: str, scope: Scope) -> Region | None:
        """The region of a name of a plan's parameter; None if names refer to tensors."""
        return None

    def __contains__(self, name: str) -> bool:
        return not any(isinstance(behind, str) for behind in self.behind(name))

    def __getitem__(self, name: str) -> TensorInfo:
        info = self.get(name)
        if info is None:
            raise KeyError(name)
        return info

    def items(self, but: Container[str] = ()) -> Iterator[tuple[str, TensorInfo]]:
        """Every tensor by the name that drops use, except those whose own name is in `but`."""
        return ((self.bare(name), info) for name, info in self.headers.items() if info.name not in but)
