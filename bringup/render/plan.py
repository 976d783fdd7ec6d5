"""A plan as text: one line for each parameter, equal layers grouped."""

from __future__ import annotations

from bringup.adapters.planning.plan import Entry, Plan
from bringup.compile.report.describe import how
from bringup.graphs.core.axes import show
from bringup.grouping import digits, grouped
from bringup.render.visible import visible
from bringup.render.words import table


def plan_text(plan: Plan) -> str:
    """The rule of each parameter, the dropped tensors with reasons, and the problems."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, entry in plan.entries.items():
        alike.setdefault((digits(name)[0], *_facts(entry)), []).append(name)
    rows: list[tuple[str, ...]] = [
        (text, *facts[1:], "<-", visible(", ".join(grouped(i.name for n in names for i in plan.entries[n].tensors))))
        for facts, names in alike.items()
        for text in [", ".join(grouped(names))]
    ]
    lines = [table(rows)] if rows else []
    dropped: dict[str, list[str]] = {}
    for name, drop in plan.dropped.items():
        dropped.setdefault(drop.why, []).append(name)
    lines += [visible(f"dropped: {', '.join(grouped(names))} ({why})") for why, names in dropped.items()]
    lines += [visible(f"{p.code}: {p.parameter} {p.message}").rstrip() for p in plan.problems]
    return "".join(f"{line}\n" for line in lines)


def _facts(entry: Entry) -> tuple[str, ...]:
    shape, dtype = entry.declared.storage
    return show(entry.declared.axes), str(list(shape)), dtype, how(entry)
