"""The layout of a target: logical parameters fused into physical buffers, by rules of the same algebra.

A layout is an adapter whose sources are the graph's own parameters. Parameters without a rule are unchanged.
"""

from __future__ import annotations

import re
from dataclasses import replace

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.expr import S, cat
from bringup.adapters.algebra.pattern import fill, match
from bringup.adapters.algebra.region import Region
from bringup.adapters.algebra.scope import Scope
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Entry, Plan
from bringup.adapters.planning.rules import Rule
from bringup.diagnostics import fail
from bringup.graphs.core.signature import Declared, Signature
from bringup.spec import TensorInfo


def fused() -> Adapter:
    """The projections of one input in one matrix: one product reads the activations once.

    They are q, k and v; gate and up; those of a gated DeltaNet; those of Mamba 2; those of LFM2's convolution.
    """
    layout = Adapter("fused")
    for mixer in (("qkv", "z", "b", "a"), ("gate", "xbc", "dt")):
        inputs = (S(f"{{p}}.in_proj_{x}.{{w}}") for x in mixer)
        layout["{p:**}.in_proj.{w:weight|bias}"] = cat(*inputs, axis="out")
    layout["{p:**}.bcx_proj.{w:weight|bias}"] = cat(*(S(f"{{p}}.{x}_proj.{{w}}") for x in "bcx"), axis="out")
    qkv = (S(f"{{p}}.{x}_proj.{{w}}") for x in "qkv")
    layout["{p:**}.qkv_proj.{w:weight|bias}"] = cat(*qkv, axis="out")
    layout["{p:**}.gate_up_proj.{w:weight|bias}"] = cat(S("{p}.gate_proj.{w}"), S("{p}.up_proj.{w}"), axis="out")
    return layout


def shared_as_experts(width: int) -> Adapter:
    """Shared experts are appended to the routed experts, each of width `width`: one product computes them all.

    The router then adds their indices, from E on, to each token's selection, with weight 1 (as in ATOM's fused shared
    experts). Biases of shared experts remain separate.
    """
    layout = Adapter("shared as experts")
    routed, shared = "{p}.experts.{x}_proj", "{p}.shared_experts.{x}_proj.weight"
    for x, before, after in (("gate|up", "(e f) m", "e f m"), ("down", "m (e f)", "e m f")):
        behind = S(shared).mv(f"{before} -> {after}", f=width)
        layout[f"{{p:**}}.experts.{{x:{x}}}_proj"] = cat(S(routed), behind, axis="e")
    return layout


def lay_out(plan: Plan, layout: Adapter) -> Plan:
    """The plan of the physical buffers. Slices, the inverse and coverage hold for it as for any plan.

    A rule applies if the graph has all its parameters. Raises BU131 for parts that are packed or of several dtypes.
    """
    rules: dict[str, tuple[Rule, dict[str, str]]] = {}  # by the first parameter of each buffer
    taken: set[str] = set()
    first = [(rule, _first(rule)) for rule in layout.rules]
    for name in plan.entries:
        if found := next(((rule, named) for rule, one in first if (named := match(one, name)) is not None), None):
            leaves = {leaf for _, leaf in found[0].own_expr.leaves(found[1])}
            if leaves <= plan.entries.keys():
                rules[name] = found
                taken |= leaves
    entries: dict[str, Entry] = {}
    names = _Planned(plan)
    for name, entry in plan.entries.items():
        if name not in rules:
            entries |= {} if name in taken else {name: entry}
            continue
        rule, bindings = rules[name]
        parts = {plan.entries[leaf].declared for _, leaf in rule.own_expr.leaves(bindings)}
        if len({(part.dtype, part.pack) for part in parts}) > 1 or entry.declared.pack:
            raise fail(
                "BU131",
                f"`{name}` cannot be fused: its parts are packed or of several dtypes",
                help="leave it out of the layout's rules",
                where=rule.site,
            )
        scope = Scope({}, (), names, bindings)
        names.parts = []
        region = rule.own_expr.region(scope)
        declared = Declared(fill(_plain(rule.pattern), bindings), region.axes, entry.declared.dtype)
        entries[declared.name] = Entry(declared, rule, tuple(scope.sources), region, tuple(names.parts))
    signature = Signature({name: entry.declared for name, entry in entries.items()})
    return replace(plan, signature=signature, entries=entries)


def _first(rule: Rule) -> str:
    """The pattern of a rule's first source, which identifies the buffer of a parameter."""
    kinds = dict(re.findall(r"\{(\w+):([^}]*)\}", rule.pattern))
    first = next(source.name for source, _ in rule.own_expr.leaves(dict.fromkeys(kinds, "")))
    for variable, kind in kinds.items():
        first = first.replace(f"{{{variable}}}", f"{{{variable}:{kind}}}")
    return first


def _plain(pattern: str) -> str:
    """The pattern without the kinds of its variables, for filling in."""
    return re.sub(r"\{(\w+):[^}]*\}", r"{\1}", pattern)


class _Planned(Names):
    """A plan's parameters as the tensors that rules read; `parts`: those read, each with its sources' range."""

    def __init__(self, plan: Plan) -> None:
        super().__init__({})
        self.plan = plan
        self.parts: list[tuple[Entry, int, int]] = []

    def planned(self, name: str, scope: Scope) -> Region | None:
        entry, offset = self.plan.entries[name], len(scope.sources)

        def shifted(region: Region) -> Region:
            return replace(region, nests=tuple(replace(n, source=n.source + offset) for n in region.nests))

        for source in entry.sources:
            if isinstance(source, Computed):
                source = replace(source, inputs=tuple(shifted(region) for region in source.inputs))
            scope.sources.append(source)
        self.parts.append((entry, offset, len(scope.sources)))
        return shifted(entry.region)

    def behind(self, name: str) -> list[TensorInfo | str]:
        return list(self.plan.entries[name].tensors)
