"""Infers sizes that a config lacks, so that the rest of a checkpoint can be checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bringup.diagnostics import Diagnostic
from bringup.grouping import digits

# Divisible by every usual number of heads; or one, which divides all others.
SIZES = (5040, 1)
NUMBERS = {"layers": 0, "experts": 1}  # the index of the number in a tensor's name that counts them


def without_unknown(
    raw: Mapping[str, Any], findings: Iterable[Diagnostic], names: Iterable[str]
) -> list[dict[str, Any]]:
    """Configs with other values for the sizes that findings call unknown: candidates, the best first.

    Numbers of layers and of experts are those of the checkpoint's tensor names. There are no candidates if an unknown
    size is not a key of the config itself, or the names have no numbers.
    """
    unknown = {finding.config_key: finding.stops for finding in findings if finding.stops}
    counts: dict[str, int] = {}
    for name in names if set(unknown.values()) & NUMBERS.keys() else ():
        numbers = digits(name)[1]
        for kind, place in NUMBERS.items():
            if place < len(numbers):
                counts[kind] = max(counts.get(kind, 0), numbers[place] + 1)
    if any(kind in NUMBERS and kind not in counts for kind in unknown.values()):
        return []
    return [{**raw, **{key: counts.get(kind, size) for key, kind in unknown.items()}} for size in SIZES]
