"""Descriptions of copy nests, and rows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bringup.adapters.algebra.computed import Computed
from bringup.adapters.algebra.copy_nest import Nest
from bringup.adapters.planning.plan import Entry
from bringup.spec import DTYPES, FLOATS, TensorInfo

MOST = 6  # rows of a label before a count of the others


def how(entry: Entry) -> str:
    """A summary in a few words: `as stored`, `transposed`, `rows 0 to 49`, `3 copies`."""
    nests = entry.region.nests
    if any(isinstance(source, Computed) for source in entry.sources):
        return "computed"
    if len(nests) != 1:
        return f"{len(nests)} copies"
    nest, source = nests[0], entry.sources[nests[0].source]
    whole = DTYPES[source.dtype].nbytes(source.shape) * 8 == nest.count * DTYPES[nest.view].bits
    return ("" if whole else "a part, ") + _order(nest)


def _order(nest: Nest) -> str:
    if all(src == dst for _, src, dst in nest.loops):
        return "as stored"
    if len(nest.loops) == 2 and nest.loops[0][1] == 1 and nest.loops[1][2] == 1:
        return "transposed"
    return "rearranged"


def copies(entry: Entry) -> Iterator[str]:
    """One line for each nest."""
    region = entry.stored()
    for nest in region.nests:
        source = entry.sources[nest.source]
        name = source.name if len(entry.sources) > 1 else ""
        yield ", ".join(text for text in (_loops(nest), _places(nest, name), _order(nest)) if text)
    filled = sum(nest.count for nest in region.nests)
    if filled < region.size:
        yield f"{region.size - filled:,} elements are padding: zero"


def _loops(nest: Nest) -> str:
    """`2304 times (source +1, result +768): 768 elements, 2304 apart in the source`."""
    if not nest.loops:
        return "1 element"
    *outer, (extent, src, dst) = nest.loops
    apart = [f"{step} apart in the {side}" for step, side in ((src, "source"), (dst, "result")) if step != 1]
    run = f"{extent:,} elements" + (f", {', '.join(apart)}" if apart else " in a run")
    times = [f"{n:,} times (source +{s}, result +{d}): " for n, s, d in outer]
    return "".join(times) + run


def _places(nest: Nest, source: str) -> str:
    start = f"from element {nest.src:,}" if nest.src else ""
    stop = f"to element {nest.dst:,}" if nest.dst else ""
    return " ".join(word for word in (start, f"of {source}" if source else "", stop) if word)


def dtypes(entry: Entry) -> Iterator[str]:
    """The conversion of the dtype of each source that the parameter is copied from."""
    stored = entry.declared.storage[1]
    views: dict[int, dict[str, None]] = {}
    for nest in entry.region.nests:
        views.setdefault(nest.source, {})[nest.view] = None
    copied = {index: entry.sources[index] for index in views}
    computed = {view for index, source in copied.items() if isinstance(source, Computed) for view in views[index]}
    for view in dict.fromkeys(view for each in views.values() for view in each):
        if view == entry.declared.dtype or view not in FLOATS:
            origin = "as computed" if view in computed else "as stored"
            yield f"{view}, {origin}" if view == stored else f"{view}, packed into {stored}"
        else:
            yield f"{view} → {stored}, {'exact' if _widens(view, stored) else 'rounded to nearest even'}"
    for index, source in copied.items():
        if isinstance(source, TensorInfo) and source.dtype not in views[index] and not DTYPES[source.dtype].block:
            yield f"the bits of {source.dtype} `{source.name}` are read as {', '.join(views[index])}"


def _widens(old: str, new: str) -> bool:
    """Whether every value of one float type is also one of the other."""
    return DTYPES[old].bits < DTYPES[new].bits or old == new


def labelled(label: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The first texts, of which only the first has the label; then the number of the others."""
    for index, text in enumerate(texts[:MOST]):
        yield (label if index == 0 else ""), text
    if len(texts) > MOST:
        yield "", f"and {len(texts) - MOST} more"
