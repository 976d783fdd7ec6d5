"""The modules that a quantised checkpoint has as they were, by the lists that converters write into config.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Self

from bringup.graphs.config.fields import Fields
from bringup.shown import shown

# transformers' `FineGrainedFP8Config` and its alias: where a name begins, or how it ends (`should_convert_module`).
BY_PLACE = ("modules_to_not_convert", "ignored_layers")
# AMD Quark's, NVIDIA ModelOpt's and compressed-tensors': whole names, globs, and expressions that begin with `re:`.
BY_NAME = ("exclude", "exclude_modules", "ignore")
MOST = 1000  # globs and endings, each of which is tried on every module; names are looked up

# Of a regular expression what a glob can say: any text, a point, a number, and plain characters.
_SIMPLE = re.compile(r"\^?(?:\.\*|\\\.|\\d\+|[\w.-])*\$?")


@dataclass(frozen=True, slots=True)
class UnquantizedModules:
    """`names` stand for a module and all that is below it; `globs` for whole names; `endings` for how names end."""

    names: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names or self.globs)

    def __contains__(self, module: str) -> bool:
        return (
            not self.names.isdisjoint(_upward(module))
            or module.endswith(self.endings)
            or any(fnmatchcase(module, glob) for glob in self.globs)
        )

    @classmethod
    def from_fields(cls, words: Fields) -> Self:
        """From the words of a `quantization_config`: whichever of the lists are there.

        Notes BU122 for an expression that no glob can say, and for more than MOST globs and endings.
        """
        names, globs, endings = set[str](), list[str](), list[str]()
        for key in (*BY_PLACE, *BY_NAME):
            for entry in words.words(key) or ():
                expression, simple = entry.removeprefix("re:"), re.fullmatch(r"[\w.-]+", entry)
                if simple:
                    names.add(entry)
                    endings += [entry] if key in BY_PLACE and not entry.startswith("model.") else []
                elif key in BY_NAME and expression == entry:
                    globs.append(entry)
                elif _SIMPLE.fullmatch(expression):
                    globs += _globs(expression, below=key in BY_PLACE)
                else:
                    words.error("BU122", f"`{key}` has {shown(entry)}, an expression that is not understood", key)
            if len(globs) + len(endings) > MOST:
                words.error("BU122", f"`{key}` has more than {MOST:,} patterns", key)
                return cls()
        return cls(frozenset(names), tuple(globs), tuple(endings))


def _upward(module: str) -> Iterator[str]:
    """A module's name and those of all that it is in."""
    return accumulate(module.split("."), "{}.{}".format)


def _globs(expression: str, *, below: bool) -> list[str]:
    """The globs of a simple expression, which a name begins with. `below`: it ends where a part of the name does."""
    glob = expression.removeprefix("^").removesuffix("$")
    for message, replacement in ((r"\.", "."), (".*", "*"), (r"\d+", "[0-9]*")):
        glob = glob.replace(message, replacement)
    if expression.endswith("$"):
        return [glob]
    return [glob, f"{glob}.*"] if below else [f"{glob}*"]
