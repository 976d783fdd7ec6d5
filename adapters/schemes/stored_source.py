"""Rules for plain weights applied to a quantised checkpoint: each matrix is read from the tensors that store it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from bringup.adapters.algebra.expr import Cat, Expr, Source
from bringup.adapters.algebra.pattern import fill
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.rules import Rule, changed
from bringup.adapters.schemes.part_source import NOWHERE, ByRows, OfSize, PartSource, Within, columns_first
from bringup.adapters.schemes.scheme import Modules, Stored, StoredMatrix, Unread
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.axes import Axes, AxesError, Axis, parse, shape_of, show
from bringup.graphs.core.signature import Signature
from bringup.spec import FLOATS, TensorInfo

if TYPE_CHECKING:
    import numpy as np

_OPEN = re.compile("\0\\w+\0")  # a stack's number that is not known yet


@dataclass(frozen=True, eq=False)
class Reading:
    """What determines a tensor's storage: the config, the checkpoint's names, and the parameters that rules compute.

    `tables` are the tensors that become tables of rows. `unlisted`: the config lists no modules, and some tensors are
    quantised.
    """

    stored: Stored
    names: Names
    prefix: str
    outside: frozenset[str]
    signature: Signature
    tables: frozenset[str]
    unlisted: bool
    known: dict[tuple[str, frozenset[str]], Expr] = field(default_factory=dict[tuple[str, frozenset[str]], Expr])

    def parts_of(self, name: str) -> dict[str, TensorInfo]:
        """The tensors of the checkpoint that may store a tensor, by part."""
        parts = self.stored.all_parts if name.endswith(".weight") else self.stored.parts_of_experts
        found = {part: self.names.get(part_name(name, part)) for part in parts}
        return {part: info for part, info in found.items() if info is not None}

    def modules(self, name: str) -> Modules:
        """The alternative names of a tensor's module."""
        module = name.removesuffix(".weight")
        inside = self.prefix and module.partition(".")[0] not in self.outside
        names = (f"{self.prefix}{module}", module) if inside else (module,)
        return Modules.named(*names, table=f"{module}.weight" in self.tables)

    def quantised(
        self, name: str, leaf: Source, rule: str, bindings: Mapping[str, str]
    ) -> Mapping[str, TensorInfo] | None:
        """The parts of a tensor that is stored in parts; None for a plain one.

        The config decides, and if it permits both, the tensors do: converters differ in routers, embeddings, heads and
        modules of all experts, and in the meaning of a list of modules.
        """
        if not (self.stored.parts if name.endswith(".weight") else self.stored.parts_of_experts):
            return None
        if not self.stored.stores(self.modules(name)):
            return None
        parts = self.parts_of(name)
        if parts.keys() - {"weight"}:
            return parts
        plain = self.names.get(name)
        if plain is not None and plain.dtype not in FLOATS:
            return parts
        if plain is not None and (self.unlisted or any(map(self.stored.unquantized.may_match, self.modules(name)))):
            return None
        if name.endswith(".weight") and len(parse(leaf.axes)) == 3:
            return None
        declared = self.signature.params.get(_parameter(rule, bindings))
        if declared is None or (plain is not None and self.stored.leaves_experts and _of_experts(declared.axes)):
            return None
        return parts if is_converted(declared.axes) else None


def part_name(name: str, part: str) -> str:
    """The name of a part of a tensor."""
    module = name.removesuffix(".weight")
    return f"{module}.{part}" if module != name else f"{name}_{part}"


def _parameter(rule: str, bindings: Mapping[str, str]) -> str:
    """The parameter that a rule computes, by the variables of its pattern."""
    return fill("".join(_plain_holes(rule)), bindings)


def _plain_holes(pattern: str) -> Iterator[str]:
    """A pattern whose variables have no alternatives."""
    for at, piece in enumerate(pattern.split("{")):
        hole, brace, rest = piece.partition("}")
        yield f"{{{hole.partition(':')[0]}}}{rest}" if at and brace else piece


def is_converted(axes: Axes) -> bool:
    """Whether converters quantise a parameter with these axes by default.

    These are experts and the matrices of linear layers, but not heads (`vocab`), and not routers, which have a row for
    each expert.
    """
    names = [axis.name for axis in axes]
    if len(names) == 3:
        return _of_experts(axes)
    rows = {node.name for node in axes[0].walk()} if names == ["out", "in"] else {"e"}
    return rows.isdisjoint({"vocab", "e"})


def _of_experts(axes: Axes) -> bool:
    """Whether a parameter has a matrix of each expert."""
    return len(axes) == 3 and axes[0].name == "e"


@dataclass(frozen=True)
class StoredSource(Source):
    """A source that may be stored in parts; `of` is the plain one, `rule` the pattern of its parameters."""

    of: Source = NOWHERE
    rule: str = ""
    reading: Reading | None = None

    def leaves(self, bindings: Mapping[str, str]) -> Iterator[tuple[Source, str]]:
        for leaf, name in self.of.leaves(bindings):
            expr = self._expr(leaf, name, bindings)
            if expr is None:
                yield leaf, name
            else:
                yield from expr.leaves({})

    def region(self, scope: Scope) -> Region:
        leaves = list(self.of.leaves(scope.bindings))
        found = [self._expr(leaf, name, scope.bindings) for leaf, name in leaves]
        if not any(found):
            return self.of.region(scope)
        inner = replace(scope, bindings={}, defaults=scope.defaults if len(leaves) == 1 else ())
        literal = (Source(name, "", {}, leaf.dtype, literal=True) for leaf, name in leaves)
        exprs = tuple(expr or source for expr, source in zip(found, literal, strict=True))
        region = exprs[0].region(inner) if len(exprs) == 1 else Cat(exprs, 0).region(inner)
        assert self.reading is not None
        if columns_first(self.of, self.of.stored(scope, None), keeps_order=self.reading.stored.keeps_order):
            region = _columns_first(region)
        axes = self.of.stored(scope, region.shape)
        if axes and shape_of(axes) != region.shape and not scope.misfits:
            found, wanted = list(region.shape), list(shape_of(axes))
            raise AxesError(
                f"`{leaves[0][1]}`, stored as {self.reading.stored.scheme}, has shape {found}; the rule reads "
                f"`{show(axes)}` {wanted}"
            )
        return replace(region, axes=axes) if shape_of(axes) == region.shape else region

    def stored(self, scope: Scope, shape: tuple[int, ...] | None) -> Axes:
        return self.of.stored(scope, shape)

    def _expr(self, leaf: Source, name: str, bindings: Mapping[str, str]) -> Expr | None:
        """The matrix in terms of its parts; None for a plain tensor.

        The number of an expert may still be unknown: all experts of a layer are stored alike.
        """
        reading = self.reading
        assert reading is not None
        parts = reading.quantised(
            _first(name), leaf, self.rule, {key: _first(value) for key, value in bindings.items()}
        )
        if parts is None:
            return None
        key = name, frozenset(parts)
        if key not in reading.known:

            def part(part: str, axes: str, dtype: str) -> Expr:
                stored = reading.stored
                return PartSource(
                    part_name(name, part), "", {}, dtype, literal=True, of=leaf, layout=axes,
                    block_key=stored.block_key, keeps_order=stored.keeps_order,
                )  # fmt: skip

            def within(expr: Expr, axes: str) -> Expr:
                return Within(expr, leaf, axes, reading.stored.keeps_order)

            at_source = partial(ByRows, source=leaf), partial(OfSize, source=leaf)
            weight = StoredMatrix(reading.modules(_first(name)), parts, part, within, *at_source)
            reading.known[key] = reading.stored.matrix(weight)
        return reading.known[key]


def _first(text: str) -> str:
    """A name with an unknown expert number, with the number of the first expert."""
    return _OPEN.sub("0", text)


def _columns_first(region: Region) -> Region:
    """The region with its last two dimensions transposed."""
    before = tuple(Axis(f"d{k}", size) for k, size in enumerate(region.shape))
    return region.rearrange(before, (*before[:-2], before[-1], before[-2]))


def read_stored(adapter: Adapter, stored: Stored, signature: Signature, headers: Mapping[str, TensorInfo]) -> Adapter:
    """The adapter of a quantised checkpoint: the same rules, with matrices read from the tensors that store them."""
    names = adapter.names(headers)
    prefix, outside = names.carried or adapter.prefix, frozenset(adapter.outside())
    unlisted = not stored.lists_modules and any(name.endswith(f".{stored.parts[0]}") for name in headers)
    reading = Reading(stored, names, prefix, outside, signature, frozenset(_tables(adapter, signature)), unlisted)

    def of_rule(rule: Rule) -> Rule:
        return changed(rule, partial(_stored_source, rule=rule.pattern, reading=reading))

    quantised = replace(
        adapter, rules=[of_rule(rule) for rule in adapter.rules], drops=list(adapter.drops), _renamed_rules={}
    )
    for part in stored.unread_parts():
        wrong = partial(_wrong, reading, part) if part.wrong else None
        requires = f"{{module}}.{part.requires}" if part.requires else ""
        quantised.drop(f"{{module:**}}.{part.part}", why=part.why, requires=requires, wrong=wrong)
    return quantised


def reading_other(adapter: Adapter, rules: Iterable[Rule], headers: Mapping[str, TensorInfo]) -> Adapter:
    """Some rules of a quantised checkpoint's adapter, for other tensors in the same storage."""
    own = replace(adapter, rules=list({id(rule): rule for rule in rules}.values()), trace=None, _renamed_rules={})
    names = own.names(headers)

    def of_source(source: Source) -> Source:
        if not isinstance(source, StoredSource) or source.reading is None:
            return source
        return replace(source, reading=replace(source.reading, names=names, known={}))

    return replace(own, rules=[changed(rule, of_source) for rule in own.rules])


def _tables(adapter: Adapter, signature: Signature) -> Iterator[str]:
    """The tensors of parameters that are neither matrices of linear layers nor experts'."""
    for declared in signature.values():
        if len(declared.axes) == 2 and [axis.name for axis in declared.axes] != ["out", "in"]:
            for rule, bindings in adapter.rules_of(declared):
                yield from rule.own_expr.names(bindings)


def _wrong(reading: Reading, part: Unread, name: str, values: np.ndarray) -> str:
    """What is wrong with the values of a part, by its tensor's name; "" if nothing is."""
    assert part.wrong is not None
    module = name.removesuffix(f".{part.part}")
    return part.wrong(reading.modules(module), reading.parts_of(f"{module}.weight"), values)


def _stored_source(source: Source, rule: str, reading: Reading) -> Source:
    if source.plain:
        return source
    return StoredSource(
        source.name, source.axes, source.sizes, source.dtype, source.literal, of=source, rule=rule, reading=reading
    )


def reads_stored(adapter: Adapter, unquantized: UnquantizedModules, signature: Signature) -> bool:
    """Whether the rules of any matrix read a module that a config does not list as unquantised."""
    outside = adapter.outside()
    for declared in signature.values():
        if not is_converted(declared.axes):
            continue
        for rule, bindings in adapter.rules_of(declared):
            for leaf, name in rule.own_expr.leaves(bindings):
                module = name.removesuffix(".weight")
                full = module if module.partition(".")[0] in outside else f"{adapter.prefix}{module}"
                if not leaf.plain and module not in unquantized and full not in unquantized:
                    return True
    return False
