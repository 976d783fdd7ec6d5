"""A family: the graph, the config and the adapter of a model, and the architectures that they support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from bringup import plugins
from bringup.diagnostics import fail
from bringup.shown import short


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A graph class, its config class and the function `config -> Adapter`; each an object or `module:name`.

    `dialect` is its `Dialect` (bringup.adapters.dialects.dialect), for GGUF files. `quantisations` are values of
    `quant_method`: with any, the family supports its architectures only in these, and precedes the family that supports
    the others.
    """

    name: str
    graph: Any
    config: Any
    adapter: Any
    architectures: tuple[str, ...] = ()
    dialect: Any = None
    quantisations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises TypeError for an invalid `name` or `architectures`: users and plugins create families too."""
        listed = cast("object", self.architectures)
        texts = [self.name, *(cast("Sequence[object]", listed) if isinstance(listed, tuple | list) else (None,))]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a Family has a text as its name, and a tuple of texts as its architectures")

    def load(self, part: str) -> Any:
        """One of `graph`, `config`, `adapter`, `dialect`. Raises BU004 if a text names no object, and the errors of the
        module that it names.
        """
        what = getattr(self, part)
        try:
            return plugins.named(what) if isinstance(what, str) else what
        except LookupError as error:
            message = f"the {part} `{short(what)}` of the family `{self.name}` cannot be loaded: {error}"
            raise fail("BU004", message, help=f"pass the object itself: Family({part}=…)") from error
