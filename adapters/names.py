"""How rules see a checkpoint's tensors: by the names they use, with a prefix or a dialect resolved."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bringup.spec import TensorInfo

if TYPE_CHECKING:
    from bringup.adapters.expr import Expr
    from bringup.adapters.region import Region
    from bringup.adapters.rules import Adapter
    from bringup.adapters.scope import Scope


class Names:
    """Headers by the names that rules use. `prefix` is a first name that the checkpoint may carry or lack.

    `outside` are first names that stand without it even in a checkpoint that carries it: the head's.
    """

    def __init__(self, headers: Mapping[str, TensorInfo], prefix: str = "", outside: Collection[str] = ()) -> None:
        self.infos = {name.removeprefix(prefix): info for name, info in headers.items()}
        if prefix:  # a name that stands there without the prefix wins over one that has it
            self.infos |= {name: info for name, info in headers.items() if not name.startswith(prefix)}
        self.prefix = prefix
        self.outside = outside
        self.carried = any(name.startswith(prefix) for name in headers)

    def behind(self, name: str) -> list[TensorInfo | str]:
        """The tensors that a name stands for, in order; where there is none, the name that would be it."""
        absent = self.prefix + name if self.carried and name.partition(".")[0] not in self.outside else name
        return [self.infos.get(name, absent)]

    def made(self, name: str, scope: Scope) -> Region | None:
        """The region of a name that is no tensor's own but made from others; else None."""
        return None

    def __contains__(self, name: str) -> bool:
        return not any(isinstance(behind, str) for behind in self.behind(name))

    def __getitem__(self, name: str) -> TensorInfo:
        return self.infos[name]

    def items(self) -> Iterator[tuple[str, TensorInfo]]:
        """Every tensor by the name that drops use."""
        return iter(self.infos.items())


class Translated(Names):
    """A checkpoint in another dialect: each name that a rule uses is itself made by a rule of `dialect`."""

    def __init__(self, headers: Mapping[str, TensorInfo], dialect: Adapter) -> None:
        super().__init__(headers)
        self.dialect = dialect
        self.raw = Names(headers)

    def made(self, name: str, scope: Scope) -> Region | None:
        meant = self._meaning(name)
        if meant is None:
            return None
        from bringup.adapters.expr import Source  # expr.py builds on this file

        expr, bindings = meant
        defaults = scope.defaults if isinstance(expr, Source) else ()
        return expr.region(replace(scope, names=self.raw, bindings=bindings, defaults=defaults))

    def behind(self, name: str) -> list[TensorInfo | str]:
        meant = self._meaning(name)
        return [info for _, leaf in meant[0].leaves(meant[1]) for info in self.raw.behind(leaf)] if meant else [name]

    def _meaning(self, name: str) -> tuple[Expr, Mapping[str, str]] | None:
        return next(((rule.made, bindings) for rule, bindings in self.dialect.matching(name)), None)
