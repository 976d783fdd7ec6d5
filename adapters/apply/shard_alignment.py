"""Whether a part of a parameter consists of complete quantisation blocks, whose values share a scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.copy_nest import ranges
from bringup.adapters.planning.plan import Entry, Plan


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a parameter that splits a block: `length` values of a dimension with `block` values for each scale."""

    parameter: str
    block: int
    length: int

    def grain(self, part: int) -> int:
        """The size of a part must be a multiple of this to end at a block boundary; this part has `part` indices."""
        return self.block // math.gcd(self.block, self.length // part)


def first_cut(plan: Plan, part: Plan) -> Cut | None:
    """The first parameter of `part`, a slice of `plan`, that splits a block which the plan does not split."""
    checked: set[int] = set()
    for name, entry in part.entries.items():
        if id(entry.region) not in checked:
            checked.add(id(entry.region))
            found = next(_cuts(entry), None)
            if found and not next(_cuts(plan.entries[name]), None):
                return Cut(name, *found)
    return None


def _cuts(entry: Entry) -> Iterator[tuple[int, int]]:
    """The block and the length of each range that does not end at a block boundary."""
    for nest in entry.region.nests:
        source = entry.sources[nest.source]
        if isinstance(source, Computed) and source.block:
            for box in ranges(nest, source.shape):
                for (start, stop), size, block in zip(box, source.shape, source.block, strict=True):
                    if start % block or (stop % block and stop != size):
                        yield block, stop - start
