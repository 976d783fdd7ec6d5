"""Names that differ from the expected ones only in spelling: leading zeros, look-alike letters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from bringup.adapters.planning.plan import Plan
from bringup.compile.check.facts.cause import Cause
from bringup.compile.check.facts.requests import Readers, parameters_of, sites_of
from bringup.compile.check.facts.shapes import stored
from bringup.diagnostics import Diagnostic
from bringup.grouping import grouped

_PADDED = re.compile(r"(?<=\.)0+(?=\d+(\.|$))")


def respelt(plan: Plan, readers: Readers, unread: Sequence[str]) -> Iterator[Cause]:
    """One finding for all numbers with leading zeros, and one for each look-alike character in names."""
    padded = {_PADDED.sub("", name): name for name in unread if _PADDED.search(name)}
    if zeros := {name: padded[name] for name in readers if name in padded}:
        first = next(iter(zeros.values()))
        message = f"numbers in names have leading zeros, as in `{first}` ({len(zeros)} tensors are missing for it)"
        help = f"rules expect `{next(iter(zeros))}`: rename the tensors"
        yield _cause(plan, readers, zeros, message, help)
    alike: dict[str, dict[str, str]] = {}
    for name in (name for name in unread if not name.isascii()):
        strange = dict.fromkeys(char for char in name if not char.isascii())
        for other in _look_alike(name, readers):
            alike.setdefault("".join(strange), {})[other] = name
    for strange, names in alike.items():
        chars = ", ".join(f"`{char}` U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip() for char in strange)
        message = f"the checkpoint has no tensor `{', '.join(grouped(names))}`"
        help = f"did you mean `{', '.join(grouped(names.values()))}`? its name has {chars}, which looks like another"
        yield _cause(plan, readers, names, message, help)


def _look_alike(name: str, absent: Iterable[str]) -> list[str]:
    """The one absent name that results if the non-ASCII characters of this one are replaced or removed."""
    wanted = re.compile("".join(re.escape(char) if char.isascii() else ".?" for char in name))
    found = [other for other in absent if wanted.fullmatch(other)]
    return found if len(found) == 1 else []


def _cause(plan: Plan, readers: Readers, names: dict[str, str], message: str, help: str) -> Cause:
    finding = Diagnostic(
        code="BU101",
        message=message,
        help=help,
        parameter=parameters_of(plan, readers, names),
        sources=(*names, *names.values()),
        **sites_of(plan, readers, names) | stored(plan, list(names.values())),
    )
    return Cause(finding, frozenset({*names, *names.values()}))
