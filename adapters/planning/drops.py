"""The tensors of a checkpoint that no rule reads: dropped with a reason, or unread."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bringup.adapters.algebra.pattern import closed, fitting, match
from bringup.adapters.algebra.tensor_names import Names
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.problems import Problem
from bringup.adapters.planning.rules import Drop
from bringup.spec import Site

Numbers = tuple[str, ...]  # the values of a drop's closed variables


@dataclass(slots=True)
class Aside:
    """By tensor: the drop that applies; the drop for its unread part; and the tensors without a drop."""

    dropped: dict[str, Drop] = field(default_factory=dict[str, Drop])
    cut: dict[str, Drop] = field(default_factory=dict[str, Drop])
    unread: list[str] = field(default_factory=list[str])
    problems: list[Problem] = field(default_factory=list[Problem])


def drop_rope_tables(adapter: Adapter, *modules: str) -> None:
    """Drops the rope tables of these modules, which graphs compute from the config; by default those of a Llama.

    Older versions of transformers save the frequencies of each layer, newer ones have one module for all layers;
    ColossalAI saves the tables of cosines and sines too.
    """
    for module in modules or ("layers.{L}.self_attn.rotary_emb", "rotary_emb"):
        pattern = f"{module}.{{t:inv_freq|cos_cached|sin_cached}}"
        site = Site.outside(__file__)
        adapter.drops.append(Drop(pattern, "rope tables: computed from the config", (0, 1), None, "", site))


def set_aside(wanted: Container[str], drops: Sequence[Drop], names: Names) -> Aside:
    """Sorts the tensors that no rule reads. Drops with fewer or more tensors than they expect are problems."""
    aside, loose = Aside(), list(names.items(but=wanted))
    fits = fitting(drop.pattern for drop in drops)
    candidates = [(name, info) for name, info in loose if fits(name)]
    for drop in drops:
        variables = sorted(closed(drop.pattern))
        counts: dict[Numbers, int] = {}
        named = names.get(drop.pattern)  # only a drop that names a tensor permits to read it partly
        if named and named.name in wanted and drop.means(drop.pattern, names) is not None:
            aside.cut.setdefault(named.name, drop)
        for name, info in candidates:
            bindings = drop.means(name, names)
            if bindings is None:
                continue
            aside.dropped.setdefault(info.name, drop)
            key = tuple(bindings[variable] for variable in variables)
            counts[key] = counts.get(key, 0) + 1
        for key in _layers(drop.pattern, names) if drop.expect[0] else ():
            counts.setdefault(key, 0)
        aside.problems += _miscounted(drop, variables, counts)
    aside.unread += (info.name for _, info in loose if info.name not in aside.dropped)
    return aside


def _miscounted(drop: Drop, variables: list[str], counts: Mapping[Numbers, int]) -> Iterator[Problem]:
    """BU111, once for each wrong count."""
    minimum, maximum = drop.expect
    wrong: dict[int, list[Numbers]] = {}
    for key, count in counts.items():
        if not minimum <= count <= maximum:
            wrong.setdefault(count, []).append(key)
    expected = f"{minimum} to {maximum}" if minimum < maximum else f"{minimum}"
    for count, keys in wrong.items():
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        first = min(keys, key=lambda key: [(len(value), value) for value in key])
        where = f" for {', '.join(map('='.join, zip(variables, first, strict=True)))}{more}" if variables else ""
        message = f"drop `{drop.pattern}` ({drop.why}): expected {expected}, found {count} tensors{where}"
        yield Problem(code="BU111", rule=drop, expected=expected, actual=str(count), message=message)


def _layers(pattern: str, names: Names) -> set[Numbers]:
    """The layers in which a drop's tensors could be: those of any tensor whose name begins as the pattern does."""
    head, hole, _ = pattern.partition("}")
    if not hole or closed(pattern) != closed(head + hole):
        return {()}
    found = (match(f"{head}}}.{{rest:**}}", name) for name, _ in names.items())
    return {tuple(bindings[variable] for variable in sorted(closed(pattern))) for bindings in found if bindings}
