"""Translation of names: a checkpoint's own names for sections of a rule's names, and tensors that functions compute.

The sections between dots are translated, as in the weights loader of TensorRT-LLM (docs, "Model Weights Loader").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, cast

from bringup.adapters.algebra.expr import Expr, Source
from bringup.adapters.algebra.hooks import Hook
from bringup.adapters.algebra.pattern import fill, match
from bringup.adapters.algebra.region import Region, concat
from bringup.adapters.algebra.scope import Scope
from bringup.graphs.core.axes import Axes, AxesError, shape_of, show
from bringup.spec import Shape

Table = Mapping[str, str | tuple[str, ...]]
NO_WORDS: Table = {}
_MARK, _NUMBER = (
    re.compile(r"\0\w+\0"),
    "98765432109876543210",
)  # a stack's number that is not known yet, and a stand-in


@dataclass(frozen=True)
class Words:
    """One or several sections of a name → those of the checkpoint; "" removes them, a tuple stands for several names.

    The longest key takes precedence; a replacement is not translated again.
    """

    table: Table = field(default_factory=lambda: NO_WORDS)

    @cached_property
    def _longest(self) -> int:
        return max((key.count(".") + 1 for key in self.table), default=0)

    def of(self, name: str) -> tuple[str, ...]:
        """The checkpoint's names for a rule's name, in the order of the table."""
        if not self.table:
            return (name,)
        parts = name.split(".")
        names: list[list[str]] = [[]]
        at = 0
        while at < len(parts):
            sections = range(min(self._longest, len(parts) - at), 0, -1)
            step, key = next(
                ((n, key) for n in sections if (key := ".".join(parts[at : at + n])) in self.table), (1, "")
            )
            given = self.table[key] if key else parts[at]
            others = (given,) if isinstance(given, str) else given
            names = [[*before, *filter(None, [other])] for before in names for other in others]
            at += step
        return tuple(".".join(sections) for sections in names)

    def over(self, other: Words) -> Words:
        """These words, and the other's for sections that these do not have."""
        return Words({**other.table, **self.table})


@dataclass(frozen=True)
class Reading:
    """One step from a rule's names to the checkpoint's: functions that compute tensors, then a table of names."""

    words: Words = field(default_factory=Words)
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True)
class Translated(Source):
    """A source under other names; several tensors are concatenated along `out`, or else along the first axis."""

    readings: tuple[Reading, ...] = ()

    def leaves(self, bindings: Mapping[str, str]) -> Iterator[tuple[Source, str]]:
        output, inner, names = self._read(bindings)
        if output is not None:
            yield from output.leaves(inner)
        else:
            leaf = self if len(names) == 1 else OneOfSeveral(self.name, self.axes, self.sizes, self.dtype)
            yield from ((leaf, name) for name in names)

    def region(self, scope: Scope) -> Region:
        output, inner, names = self._read(scope.bindings)
        if output is None and len(names) == 1:
            return Source(names[0], self.axes, self.sizes, self.dtype).region(replace(scope, bindings={}))
        if output is not None:
            whole = output.region(replace(scope, bindings=inner, defaults=()))
        else:
            whole = self._joined(names, scope)
        axes = self.stored(scope, whole.shape)
        if axes and shape_of(axes) != whole.shape:
            raise AxesError(f"`{self.name}` has shape {list(whole.shape)}; the rule reads `{show(axes)}`")
        return replace(whole, axes=axes) if axes else whole

    def _joined(self, names: tuple[str, ...], scope: Scope) -> Region:
        parts = [Source(name, "", {}, self.dtype).region(replace(scope, bindings={}, defaults=())) for name in names]
        stored = [axis.name for axis in self.stored(scope, None)]
        return concat(parts, stored.index("out") if "out" in stored else 0, "")

    def _read(self, bindings: Mapping[str, str]) -> tuple[Expr | None, Mapping[str, str], tuple[str, ...]]:
        """The expression that computes the tensor, with its variables; or the names that replace it."""
        names: tuple[str, ...] = (fill(self.name, bindings),)
        for at, reading in enumerate(self.readings):
            if len(names) == 1 and (found := _output_of(reading.hooks, names[0])):
                output, inner = found
                return each_source(output, partial(translated, readings=self.readings[at + 1 :])), inner, ()
            names = tuple(other for name in names for other in reading.words.of(name))
        return None, bindings, names


@dataclass(frozen=True)
class OneOfSeveral(Source):
    """One of several tensors of a source: no rule declares its size."""

    def stored(self, scope: Scope, shape: Shape | None) -> Axes:
        return ()


def _output_of(hooks: tuple[Hook, ...], name: str) -> tuple[Expr, dict[str, str]] | None:
    """The function that computes a tensor of that name, and the variables of its pattern."""
    mark = found.group() if (found := _MARK.search(name)) else ""
    for hook in hooks:
        for pattern in hook.outputs:
            bindings = match(pattern, name.replace(mark, _NUMBER) if mark else name)
            if bindings is not None:
                hook.read.add(pattern)
                values = {key: value.replace(_NUMBER, mark) if mark else value for key, value in bindings.items()}
                return hook.output(pattern), values
    return None


def translated(source: Source, readings: tuple[Reading, ...]) -> Source:
    """A source with further translation steps after its own."""
    if not readings:
        return source
    before = source.readings if isinstance(source, Translated) else ()
    return Translated(
        source.name, source.axes, source.sizes, source.dtype, source.literal, source.plain, (*before, *readings)
    )


def renamed_source(source: Source, words: Words) -> Source:
    """A source with the names of a layer's class, which take precedence in its first step; not a literal one."""
    if source.literal:
        return source
    first, *rest = source.readings if isinstance(source, Translated) else (Reading(),)
    readings = (Reading(words.over(first.words), first.hooks), *rest)
    return Translated(source.name, source.axes, source.sizes, source.dtype, plain=source.plain, readings=readings)


class Changeable(Expr):
    """An expression whose sources are not in its fields."""

    def changed(self, change: Callable[[Source], Source]) -> Expr:
        """The expression with every source changed."""
        raise NotImplementedError


def each_source(expr: Expr, change: Callable[[Source], Source]) -> Expr:
    """The expression with every source changed."""
    if isinstance(expr, Source):
        return change(expr)
    if isinstance(expr, Changeable):
        return expr.changed(change)
    changed: dict[str, Any] = {}
    for part in fields(cast("Any", expr)):
        value = getattr(expr, part.name)
        if isinstance(value, Expr):
            changed[part.name] = each_source(value, change)
        elif isinstance(value, tuple) and value and all(isinstance(item, Expr) for item in cast("Any", value)):
            changed[part.name] = tuple(each_source(item, change) for item in cast("tuple[Expr, ...]", value))
    return cast("Expr", replace(cast("Any", expr), **changed))


def first_section(source: Source) -> str:
    """The first section of a source's name, in the checkpoint's words."""
    names = (source.name,)
    for reading in source.readings if isinstance(source, Translated) else ():
        names = tuple(other for name in names for other in reading.words.of(name))
    return names[0].partition(".")[0]
