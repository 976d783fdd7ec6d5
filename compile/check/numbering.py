"""Findings from the numbers of layers and experts of missing tensors."""

from __future__ import annotations

from collections.abc import Collection

from bringup.adapters.planning.plan import Plan
from bringup.compile.check.facts.config_keys import ConfigWords, Count, last_number
from bringup.grouping import grouped


def present(plan: Plan, parent: str) -> list[int]:
    """The numbers below a name in the checkpoint, sorted."""
    steps = {n[len(parent) + 1 :].partition(".")[0] for n in plan.headers if n.startswith(parent + ".")}
    if not steps:  # the checkpoint's names may have the prefix that rules omit
        steps = {n.partition(f".{parent}.")[2].partition(".")[0] for n in plan.headers if f".{parent}." in n}
    return sorted(int(step) for step in steps if step.isdigit())


def past_end(plan: Plan, root: str) -> bool:
    """Whether a root is a number after the last one in the checkpoint."""
    parent, _, last = root.rpartition(".")
    there = present(plan, parent) if last.isdigit() else []
    return bool(there) and int(last) > there[-1]


def numbering(plan: Plan, missing: Collection[str], words: ConfigWords | None) -> str:
    """The present numbers of the first missing number's parent, as a message; "" for other names.

    `words` has the key that states the count, if a config does.
    """
    parent = next(iter(missing)).rpartition(".")[0]
    last = max((root[len(parent) + 1 :] for root in missing if root.rpartition(".")[0] == parent), key=_length_first)
    there = present(plan, parent) if last.isdigit() else []
    if not there or int(last) in there:
        return ""
    if int(last) > there[-1]:
        if count := _count(words, parent, int(last) + 1, there):
            ends = f"the checkpoint ends at {parent}.{there[-1]}"
            return f"{count.text}, and {ends}: set it to {count.needed}, or fetch the missing tensors"
        return f"the checkpoint ends at {parent}.{there[-1]}, the config expects {last}: one of the two is wrong"
    return f"gap in the numbering of `{parent}`: {_numbered(parent, there)} are present"


def renumbered(plan: Plan, missing: str, found: str) -> str:
    """The message for a missing root and an unread one that are two numbers of one parent; "" for others."""
    parent, _, last = missing.rpartition(".")
    other, _, number = found.rpartition(".")
    if parent != other or last == number or not (last.isdigit() and number.isdigit()):
        return ""
    return (
        f"the checkpoint has {_numbered(parent, present(plan, parent))}, and no rule reads `{found}`: its numbers "
        f"begin at {present(plan, parent)[0]}, so that each would be read as another one"
    )


def surplus(plan: Plan, unread: Collection[str], words: ConfigWords | None) -> str:
    """The message for unread roots whose numbers follow the last one that rules read; "" for others."""
    parents = {root.rpartition(".")[0] for root in unread}
    numbers = [root.rpartition(".")[2] for root in unread]
    parent = next(iter(parents))
    if len(parents) > 1 or not parent or not all(map(str.isdigit, numbers)):
        return ""
    wanted = last_number(plan, parent)
    if wanted < 0 or min(map(int, numbers)) <= wanted:
        return ""
    there = present(plan, parent)
    if count := _count(words, parent, wanted + 1, there):
        ends = f"the checkpoint ends at {parent}.{there[-1]}"
        return f"{count.text}, and {ends}: set it to {count.needed}, or use the checkpoint of this config"
    return (
        f"the config ends at {parent}.{wanted}: correct the number there, or the checkpoint belongs to another config"
    )


def _count(words: ConfigWords | None, parent: str, stated: int, there: list[int]) -> Count | None:
    """The key with the number of names below a parent, if the checkpoint has the first ones without a gap."""
    if words is None or there != list(range(len(there))):
        return None
    return words.count(parent, stated, len(there))


def _length_first(number: str) -> tuple[int, str]:
    return len(number), number


def _numbered(parent: str, numbers: list[int]) -> str:
    return grouped(f"{parent}.{number}" for number in numbers)[0]
