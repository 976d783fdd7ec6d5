"""The base model of an adapter: the tensors that its rules read, and the parameters that each is read for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from bringup.adapters.algebra.expr import S
from bringup.adapters.lora.stacked import stacked
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.expected_headers import published
from bringup.adapters.planning.plan import Entry, make_plan
from bringup.adapters.planning.rules import Rule, Tied
from bringup.graphs.core.signature import Signature
from bringup.spec import TensorInfo

WHOLE = ".weight"


class Use(NamedTuple):
    """A parameter that is read from a tensor: `source` is the tensor's index among its entry's sources."""

    entry: Entry
    source: int

    @property
    def axes(self) -> set[str]:
        """The names of the parameter's axes."""
        return {node.name for axis in self.entry.declared.axes for node in axis.walk()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """`tensors` and `uses` are by the names of the family's own checkpoints, which have the last of `prefixes`.

    `published` are those that a checkpoint has; the others are names in other programs. `parameters` are all of the
    graph's, in order. `tied` maps heads without a tensor of their own in this base to the embedding that they are read
    from. `outside` are first sections without a prefix.
    """

    parameters: tuple[str, ...]
    prefixes: tuple[str, ...]
    outside: frozenset[str]
    tensors: Mapping[str, TensorInfo]
    published: frozenset[str]
    uses: Mapping[str, tuple[Use, ...]]
    tied: Mapping[str, str]

    def bare(self, name: str) -> str:
        """A name without its prefix."""
        return bare(name, self.prefixes)

    def parameters_of(self, target: str) -> set[str]:
        """The parameters that are read from a tensor."""
        return {use.entry.declared.name for use in self.uses.get(target, ())}

    def own(self, module: str) -> str:
        """The base's name of a module, whichever prefix it has or lacks."""
        return module if module + WHOLE in self.tensors else full(module, self.prefixes, self.outside)


def bare(name: str, prefixes: tuple[str, ...]) -> str:
    found = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
    return name[len(found) :]


def full(name: str, prefixes: tuple[str, ...], outside: Collection[str]) -> str:
    """A name with the prefix of the family's own checkpoints."""
    rest = bare(name, prefixes)
    return rest if rest.partition(".")[0] in outside else "".join(prefixes[-1:]) + rest


def base_of(signature: Signature, adapter: Adapter, more: Iterable[Adapter] = ()) -> Base:
    """The base that an adapter of rules describes, without a checkpoint.

    A head that is tied to the embedding is separate: a LoRA of one is not added to the other. Experts may be named one
    by one, or as other programs store them, all of a layer in one tensor; a rule with alternatives has the names of
    each. `more` are tables of further names. Raises the errors of `published`.
    """
    outside = frozenset(adapter.outside())
    ties = [rule.expr for rule in adapter.rules if isinstance(rule.expr, Tied) and rule.expr.alike]
    tied = {
        full(other, adapter.prefixes, outside): full(own, adapter.prefixes, outside)
        for tie in ties
        if tie.when
        for expr in tie.others
        for (_, own), (_, other) in zip(tie.own.leaves({}), expr.leaves({}), strict=True)
    }
    apart = replace(adapter, rules=[_untied(rule) for rule in adapter.rules], _renamed_rules={})
    uses: dict[str, list[Use]] = {}
    tensors = _read(signature, apart, uses, adapter.prefixes, outside)
    own = frozenset(tensors)
    read = {use.entry.declared.name: name for name, used in uses.items() for use in used}
    for table in (*stacked(signature, read), *_alternatives(adapter), *more):
        part = Signature({name: declared for name, declared in signature.items() if any(table.matching(name))})
        others: dict[str, list[Use]] = {}
        tensors = {**_read(part, table, others, table.prefixes, outside), **tensors}
        uses = others | uses
    return Base(
        parameters=tuple(signature),
        prefixes=adapter.prefixes,
        outside=outside,
        tensors=tensors,
        published=own,
        uses={name: tuple(used) for name, used in uses.items()},
        tied=tied,
    )


def _read(
    signature: Signature,
    adapter: Adapter,
    uses: dict[str, list[Use]],
    prefixes: tuple[str, ...] = (),
    outside: Collection[str] = (),
) -> Mapping[str, TensorInfo]:
    """The tensors that rules read, by full names; their parameters are added to `uses`."""
    infos = [info._replace(name=full(name, prefixes, outside)) for name, info in published(signature, adapter).items()]
    tensors = {info.name: info for info in infos}
    for entry in make_plan(signature, adapter, tensors).entries.values():
        for place, source in enumerate(entry.sources):
            if isinstance(source, TensorInfo):
                uses.setdefault(source.name, []).append(Use(entry, place))
    return tensors


def _alternatives(adapter: Adapter) -> Iterator[Adapter]:
    """Tables of the names that rules with alternatives may read, except the last ones, which are the published; and of
    tied heads that the adapter drops, since they have the values of the embedding."""
    rules = [rule for rule in adapter.rules if isinstance(rule.expr, Tied) and not rule.expr.alike]
    for at in range(max((len(rule.every) for rule in rules), default=1) - 1):
        own = [replace(rule, expr=rule.every[at]) for rule in rules if at < len(rule.every) - 1]
        yield replace(adapter, rules=own, _renamed_rules={})
    ties = [rule for rule in adapter.rules if isinstance(rule.expr, Tied) and rule.expr.alike]
    heads = [
        replace(rule, expr=S(drop.pattern))
        for rule in ties
        for drop in adapter.drops
        if drop.same_as in {name for expr in rule.every for _, name in expr.leaves({})}
    ]
    yield replace(adapter, rules=heads, _renamed_rules={})


def _untied(rule: Rule) -> Rule:
    tie = rule.expr
    return replace(rule, expr=tie.own) if isinstance(tie, Tied) and tie.alike else rule
