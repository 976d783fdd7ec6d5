"""The modules that a quantised checkpoint stores unquantised, from the lists that converters write to config.json."""

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

# transformers' `FineGrainedFP8Config` and its alias: prefixes or suffixes of names (`should_convert_module`).
BY_PLACE = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
# AMD Quark's, NVIDIA ModelOpt's and compressed-tensors': complete names, globs, and expressions after `re:`.
BY_NAME = ("exclude", "exclude_modules", "ignore")
MOST = 1000  # texts, globs and suffixes, each of which is compared with every module; names are looked up
MOST_EXPRESSIONS = 50  # that no glob can express

# The part of a regular expression that a glob can express: any text, any character, a dot, and plain characters.
_SIMPLE = re.compile(r"\^?(?:\.\*|\\\.|\.|[\w-])*\$?")
_PIECE = re.compile(r"\.\*|\\\.|\.")


@dataclass(frozen=True, slots=True)
class UnquantizedModules:
    """`names` are modules, with all modules in them; `globs` match complete names; `suffixes` are suffixes of names.

    `expressions` are those that no glob can express; they match a prefix. `substrings` are substrings of names.
    """

    names: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    expressions: tuple[Expression, ...] = ()
    substrings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names or self.globs or self.expressions)

    def __contains__(self, module: str) -> bool:
        return (
            not self.names.isdisjoint(_upward(module))
            or module.endswith(self.suffixes)
            or any(fnmatchcase(module, glob) for glob in self.globs)
            or any(expression.matches(module) for expression in self.expressions)
        )

    def may_match(self, module: str) -> bool:
        """Whether the name of a module contains a text of a list.

        AutoAWQ (`exclude_layers_to_not_quantize`) and transformers before version 5 do not quantise such modules, later
        versions do: the module's tensors show which applies.
        """
        return any(text in module for text in self.substrings)

    @classmethod
    def from_fields(cls, words: Fields) -> Self:
        """From the keys of a `quantization_config`: all lists that it has.

        Reports BU122 for an expression that is not supported, and for more than MOST patterns.
        """
        names, suffixes, substrings = set[str](), list[str](), list[str]()
        globs, expressions = list[str](), list[Expression]()
        for key in (*BY_PLACE, *BY_NAME):
            for entry in words.strings(key) or ():
                expression, simple = entry.removeprefix("re:"), re.fullmatch(r"[\w.-]+", entry)
                if simple:
                    names.add(entry)
                    suffixes += [entry] if key in BY_PLACE and not entry.startswith("model.") else []
                    substrings += [entry] if key in BY_PLACE else []
                elif key in BY_NAME and expression == entry:
                    globs.append(entry)
                elif _SIMPLE.fullmatch(expression):
                    globs += _globs(expression, below=key in BY_PLACE)
                else:
                    try:
                        expressions.append(Expression(expression))
                    except ValueError as error:
                        words.error("BU122", f"`{key}` has {shown(entry)}, which cannot be parsed: {error}", key)
            if len(globs) + len(suffixes) > MOST or len(expressions) > MOST_EXPRESSIONS:
                words.error("BU122", f"`{key}` has more than {MOST:,} patterns, or {MOST_EXPRESSIONS} expressions", key)
                return cls()
        return cls(frozenset(names), tuple(globs), tuple(suffixes), tuple(expressions), tuple(substrings[:MOST]))


def _upward(module: str) -> Iterator[str]:
    """A module's name and those of all modules that contain it."""
    return accumulate(module.split("."), "{}.{}".format)


def _globs(expression: str, *, below: bool) -> list[str]:
    """The globs of a simple expression that matches a prefix. `below`: the match ends at a dot or at the end."""
    glob = expression.removeprefix("^").removesuffix("$")
    glob = _PIECE.sub(lambda piece: {".*": "*", ".": "?", r"\.": "."}[piece[0]], glob)
    if expression.endswith("$"):
        return [glob]
    return [glob, f"{glob}.*"] if below else [f"{glob}*"]
