"""The base model as adapters of it see it: the tensors that its rules read, and the parameters read from each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.expected_headers import published
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.adapters.planning.rules import Rule, Tied
from bringup.graphs.core.signature import Signature
from bringup.spec import Shape, TensorInfo


class Use(NamedTuple):
    """A parameter that is read from a tensor: `source` is the tensor's place among its entry's sources."""

    parameter: str
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """`tensors` are by the names that rules use: without `prefixes`, which names may carry or lack."""

    plan: Plan
    prefixes: tuple[str, ...]
    tensors: Mapping[str, TensorInfo]
    uses: Mapping[str, tuple[Use, ...]]

    def bare(self, name: str) -> str:
        """A name without the prefix that it carries."""
        found = next((prefix for prefix in self.prefixes if name.startswith(prefix)), "")
        return name[len(found) :]

    def shape(self, name: str) -> Shape:
        return self.tensors[name].shape


def base_of(signature: Signature, adapter: Adapter) -> Base:
    """The base that an adapter of rules describes, with no checkpoint.

    A head that is tied to the embedding stands for itself: what is added to the one is not added to the other. Raises
    as `published` does.
    """
    apart = replace(adapter, rules=[_untied(rule) for rule in adapter.rules], _spoken={})
    tensors = published(signature, apart)
    plan = make_plan(signature, apart, tensors)
    uses: dict[str, list[Use]] = {}
    for name, entry in plan.entries.items():
        for place, source in enumerate(entry.sources):
            uses.setdefault(source.name, []).append(Use(name, place))
    found = {name: tuple(used) for name, used in uses.items()}
    return Base(plan=plan, prefixes=adapter.prefixes, tensors=tensors, uses=found)


def _untied(rule: Rule) -> Rule:
    tie = rule.expr
    return replace(rule, expr=tie.own) if isinstance(tie, Tied) and tie.alike else rule
