"""How many bytes of a checkpoint a plan reads: payloads and scales as they are stored, not what is made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.region import Region
from bringup.adapters.planning.plan import Plan
from bringup.spec import DTYPES, TensorInfo


def stored_nbytes(plan: Plan, aliases: Mapping[str, str] | None = None) -> int:
    """Bytes of everything that the plan's parameters read, tied ones once; `aliases` are the plan's, where known.

    Of a computed value that is read in part, as much of its inputs: exact where that part is whole blocks, which
    `shard_alignment.first_cut` tells, and where each element depends on its own input.
    """
    later, known, total = plan.aliases() if aliases is None else aliases, dict[int, int](), 0
    for name, entry in plan.entries.items():
        if name in later:
            continue
        key = id(entry.region)  # layers that are alike share it
        if key not in known:
            known[key] = -(-_bits(entry.region, entry.sources) // 8)
        total += known[key]
    return total


def _bits(region: Region, sources: Sequence[TensorInfo | Computed]) -> int:
    bits = 0
    for nest in region.nests:
        source = sources[nest.source]
        if isinstance(source, Computed):
            inputs = sum(_bits(part, sources) for part in source.inputs)
            bits += -(-inputs * nest.count // math.prod(source.shape))
        else:
            bits += nest.count * DTYPES[nest.view].bits
    return bits
