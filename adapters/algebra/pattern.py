"""Name patterns: `{L}` is a number, `{m:a|b}` one of the alternatives, `{x}` any one segment, `{x:**}` and `**` any
segments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

_HOLE = re.compile(r"\{(\w+)(?::([^}]*))?\}|(\*\*)")


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern. A one-letter upper-case variable is a number."""
    return re.compile(_expression(pattern))


def _expression(pattern: str, tail: str = "") -> str:
    """The text of a pattern's regular expression; `tail` ends the names of its groups."""
    out, at, seen = "", 0, set[str]()
    for hole in _HOLE.finditer(pattern):
        out += re.escape(pattern[at : hole.start()])
        at = hole.end()
        name, choices, anything = hole.groups()
        if anything:
            out += ".*"
        elif name in seen:
            out += f"(?P={name}{tail})"
        elif choices == "**":
            out += f"(?P<{name}{tail}>.+)"
        elif choices is not None:
            out += f"(?P<{name}{tail}>{'|'.join(re.escape(choice) for choice in choices.split('|'))})"
        else:
            out += f"(?P<{name}{tail}>\\d+)" if name.isupper() else f"(?P<{name}{tail}>[^.]+)"
        seen.add(name)
    return out + re.escape(pattern[at:])


def closed(pattern: str) -> set[str]:
    """The variables of a pattern that are numbers or have listed alternatives."""
    holes = (hole.groups() for hole in _HOLE.finditer(pattern))
    return {name for name, choices, _ in holes if name and choices != "**" and (choices or name.isupper())}


def match(pattern: str, name: str) -> dict[str, str] | None:
    """The variables that make `pattern` equal to `name`, or None."""
    if _is_name(pattern):
        return {} if pattern == name else None
    found = compile_pattern(pattern).fullmatch(name)
    return found.groupdict() if found else None


def fitting(patterns: Iterable[str]) -> Callable[[str], object]:
    """Whether a name matches any of the patterns, as a function that is fast for very many names that do not match."""
    plain, others = set[str](), list[str]()
    for pattern in dict.fromkeys(patterns):
        plain.add(pattern) if _is_name(pattern) else others.append(pattern)
    if not others:
        return plain.__contains__
    expression = re.compile("|".join(_expression(pattern, f"_{n}") for n, pattern in enumerate(others)))
    ends = [(parts[0], parts[-1]) for parts in map(_HOLE.split, others)]  # a cheap test that most names fail
    heads, tails = tuple(head for head, _ in ends if head), tuple(tail for head, tail in ends if not head)
    return lambda name: (
        name in plain or ((name.startswith(heads) or name.endswith(tails)) and expression.fullmatch(name))
    )


@cache
def _is_name(pattern: str) -> bool:
    """Whether a pattern matches only itself; then no expression is compiled, as there may be very many rules."""
    return _HOLE.search(pattern) is None


class Unbound(ValueError):
    """A name has a variable that the target of its rule does not have."""


def spelled(pattern: str) -> Iterator[str]:
    """A pattern with each of its alternatives and `{}` for numbers, for comparison with names."""
    hole = re.search(r"\{(\w+)(?::([^}*]*))?\}", pattern)
    if hole is None:
        yield pattern
        return
    name, choices = hole.groups()
    for choice in choices.split("|") if choices else ["{}" if name.isupper() else name]:
        for rest in spelled(pattern[hole.end() :]):
            yield f"{pattern[: hole.start()]}{choice}{rest}"


def fill(pattern: str, bindings: Mapping[str, str]) -> str:
    """The name of a pattern with its variables filled in. Raises Unbound: a mistake of the adapter's author."""
    if "{" not in pattern:
        return pattern
    try:
        return pattern.format_map(bindings)
    except KeyError as unbound:
        raise Unbound(f"`{pattern}` uses {{{unbound.args[0]}}}, which the rule's target does not have") from None
