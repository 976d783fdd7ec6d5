"""The modules that a quantised checkpoint has as they were, by the lists that converters write into config.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Self

from bringup.graphs.config.expression import Expression
from bringup.graphs.config.fields import Fields
from bringup.shown import shown

# transformers' `FineGrainedFP8Config` and its alias: where a name begins, or how it ends (`should_convert_module`).
BY_PLACE = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
# AMD Quark's, NVIDIA ModelOpt's and compressed-tensors': whole names, globs, and expressions that begin with `re:`.
BY_NAME = ("exclude", "exclude_modules", "ignore")
MOST = 1000  # texts, globs and endings, each of which is tried on every module; names are looked up
MOST_EXPRESSIONS = 50  # that globs cannot say

# Of a regular expression what a glob can say: any text, any character, a point, and plain characters.
_SIMPLE = re.compile(r"\^?(?:\.\*|\\\.|\.|[\w-])*\$?")
_PIECE = re.compile(r"\.\*|\\\.|\.")


@dataclass(frozen=True, slots=True)
class UnquantizedModules:
    """`names` stand for a module and all that is below it; `globs` for whole names; `endings` for how names end.

    `expressions` are those that no glob can say, of how names begin. `anywhere`: what may stand anywhere in a name.
    """

    names: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    expressions: tuple[Expression, ...] = ()
    anywhere: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names or self.globs or self.expressions)

    def __contains__(self, module: str) -> bool:
        return (
            not self.names.isdisjoint(_upward(module))
            or module.endswith(self.endings)
            or any(fnmatchcase(module, glob) for glob in self.globs)
            or any(expression.matches(module) for expression in self.expressions)
        )

    def may_mean(self, module: str) -> bool:
        """Whether a list has text that occurs in a module's name.

        AutoAWQ (`exclude_layers_to_not_quantize`) and transformers before version 5 leave out such modules, later
        versions do not: which it was, the module's tensors show.
        """
        return any(text in module for text in self.anywhere)

    @classmethod
    def from_fields(cls, words: Fields) -> Self:
        """From the words of a `quantization_config`: whichever of the lists are there.

        Notes BU122 for an expression that is not understood, and for more than are tried on every module.
        """
        names, endings, anywhere = set[str](), list[str](), list[str]()
        globs, expressions = list[str](), list[Expression]()
        for key in (*BY_PLACE, *BY_NAME):
            for entry in words.words(key) or ():
                expression, simple = entry.removeprefix("re:"), re.fullmatch(r"[\w.-]+", entry)
                if simple:
                    names.add(entry)
                    endings += [entry] if key in BY_PLACE and not entry.startswith("model.") else []
                    anywhere += [entry] if key in BY_PLACE else []
                elif key in BY_NAME and expression == entry:
                    globs.append(entry)
                elif _SIMPLE.fullmatch(expression):
                    globs += _globs(expression, below=key in BY_PLACE)
                else:
                    try:
                        expressions.append(Expression(expression))
                    except ValueError as error:
                        words.error("BU122", f"`{key}` has {shown(entry)}, which is not understood: {error}", key)
            if len(globs) + len(endings) > MOST or len(expressions) > MOST_EXPRESSIONS:
                words.error("BU122", f"`{key}` has more than {MOST:,} patterns, or {MOST_EXPRESSIONS} expressions", key)
                return cls()
        return cls(frozenset(names), tuple(globs), tuple(endings), tuple(expressions), tuple(anywhere[:MOST]))


def _upward(module: str) -> Iterator[str]:
    """A module's name and those of all that it is in."""
    return accumulate(module.split("."), "{}.{}".format)


def _globs(expression: str, *, below: bool) -> list[str]:
    """The globs of a simple expression, which a name begins with. `below`: it ends where a part of the name does."""
    glob = expression.removeprefix("^").removesuffix("$")
    glob = _PIECE.sub(lambda piece: {".*": "*", ".": "?", r"\.": "."}[piece[0]], glob)
    if expression.endswith("$"):
        return [glob]
    return [glob, f"{glob}.*"] if below else [f"{glob}*"]
