"""The possible orders of q, k and v in one tensor, and of the channels that rope rotates, as rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any

from bringup.compile.draft.facts.facts import Facts, rotary_dim
from bringup.compile.draft.facts.roles import Tensors
from bringup.compile.draft.facts.slots import Reading, Slot
from bringup.compile.draft.facts.words import PARAMETERS
from bringup.compile.draft.modelling.order import order_of

PAIRED = "rope rotates pairs of channels"
PAIRS = "pair=config.head_dim // 2, two=2"


def from_pairs(text: str, heads: str, rest: str, *, partial: bool) -> str:
    """The rows of a rule in the order of halves, if rope rotates pairs of channels; `partial`: of a part of them."""
    if not partial:
        return f'{text}.mv("({heads} pair two){rest} -> ({heads} d:(two pair)){rest}", {PAIRS})'
    whole = f'{text}.mv("({heads} d){rest} -> {heads} d{rest}", d=config.head_dim)'
    rotary = "config.rope.channels(config.head_dim)"
    parts = f'{whole}.split("d", {rotary}, config.head_dim - {rotary})'
    back = f'.mv("{heads} (pair two){rest} -> {heads} d:(two pair){rest}", two=2)'
    return f'cat({parts}[0]{back}, {parts}[1], axis="d").mv("{heads} d{rest} -> ({heads} d){rest}")'


def rotates_part(facts: Facts) -> bool:
    """Whether rope rotates a part of a head's channels."""
    group: Any = facts.raw.get("rope_parameters")
    tables: list[Mapping[str, Any]] = [group if isinstance(group, Mapping) else {}, facts.raw]
    rotary = rotary_dim(facts)
    return rotary not in (0, facts.sizes.d) or any(
        table.get("partial_rotary_factor") not in (None, 1) for table in tables
    )


def qkv_slot(facts: Facts, tensors: Tensors) -> Slot:
    """q, k and v in one tensor: concatenated, or head by head, or for each key head with its queries."""
    rest = " m" if tensors.p == "weight" else ""
    sizes = "h=config.num_heads, g=config.num_kv_heads, d=config.head_dim"
    widths = "config.num_heads * config.head_dim, *(config.num_kv_heads * config.head_dim,) * 2"
    side = [
        f'S({tensors.quoted}, "out:(h d | g d | g d){rest}", {sizes}).split("out", {widths})[{at}]' for at in range(3)
    ]
    grouped = [_grouped(tensors, rest, part) for part in range(3)]
    by_place = {1: Reading("q, then k, then v", _three(tensors, side))}
    if facts.sizes.h == facts.sizes.g:
        each = [
            f'S({tensors.quoted}, "({n} t d){rest}", t=3).mv("({n} t d){rest} -> t ({n} d){rest}").at("t", {at})'
            for at, n in enumerate("hgg")
        ]
        by_place[facts.sizes.g] = Reading("each head's q, k and v", _three(tensors, each))
    elif facts.sizes.g > 1:  # with one key head this is the first reading
        by_place[facts.sizes.g] = Reading("each key head's queries, its key, its value", _three(tensors, grouped))
    readings, blocks = list(by_place.values()), blocks_of(facts, tensors)
    if blocks is not None:  # the code shows the order
        own = by_place.get(blocks[0]) if blocks[1] == "qkv" else None
        own = own or _in_blocks(facts, tensors, rest, *blocks)
        readings = [_in_pairs(facts, own, rest) if facts.hints.pairs else own]
    elif qkv_order(facts):
        readings.reverse()
    if tensors.p == "weight" and blocks in (None, (1, "qkv")):
        flipped = [text.replace(f'{rest}"', '"', 1) for text in side]
        flipped = [text.replace('"out:', '"m out:', 1) for text in flipped]
        readings.append(Reading("q, then k, then v; in out", _three(tensors, flipped)))
    return Slot(tensors, readings)


def blocks_of(facts: Facts, tensors: Tensors) -> tuple[int, str] | None:
    """The number of blocks of a tensor, and the order of q, k and v in each, by the code that splits its rows; None
    if it is not known."""
    hints, sizes, name = facts.hints, facts.sizes, tensors.module.rpartition(".")[2]
    rows = (sizes.h + 2 * sizes.g) * sizes.d
    parts = [part for part in hints.parts.values() if name in part.attributes]
    found = [order_of(part, hints.values, name, rows, (sizes.h, sizes.g, sizes.d)) for part in parts]
    order = next(iter(found), None)
    if order is None or any(other != order for other in found):
        return None
    for blocks in (number for number in range(1, sizes.g + 1) if sizes.g % number == 0):
        widths = {x: heads // blocks * sizes.d for x, heads in zip("qkv", (sizes.h, sizes.g, sizes.g), strict=True)}
        for places in permutations("qkv"):
            starts = {x: sum(widths[other] for other in places[: places.index(x)]) for x in "qkv"}
            own = {
                x: [block * rows // blocks + starts[x] + at for block in range(blocks) for at in range(widths[x])]
                for x in "qkv"
            }
            if all(own[x] == rows_of for x, rows_of in zip("qkv", order, strict=True)):
                return blocks, "".join(places)
    return None


def _in_blocks(facts: Facts, tensors: Tensors, rest: str, blocks: int, places: str) -> Reading:
    """Blocks of heads that each have their q, k and v, in this order."""
    texts: list[str] = []
    for x, heads in zip("qkv", "hgg", strict=True):
        rows, sizes = "(n t x d)", f"n={blocks}, t=3, d=config.head_dim"
        text = f'S({tensors.quoted}, "{rows}{rest}", {sizes})'
        texts.append(f'{text}.mv("{rows}{rest} -> t ({heads}:(n x) d){rest}", {sizes}).at("t", {places.index(x)})')
    return Reading(f"{blocks} blocks, each {', then '.join(places)}", _three(tensors, texts))


def _in_pairs(facts: Facts, reading: Reading, rest: str) -> Reading:
    """A reading whose queries and keys are rearranged, because rope rotates pairs of channels."""
    rules, partial = dict(reading.rules), rotates_part(facts)
    for target, heads in zip(list(rules), "hg", strict=False):
        rules[target] = from_pairs(rules[target], heads, rest, partial=partial)
    return Reading(f"{reading.meaning}; {PAIRED}", rules)


def qkv_order(facts: Facts) -> bool:
    """Whether a hint shows that q, k and v of one tensor alternate by head, or by key head."""
    return facts.hints.by_head if facts.sizes.h == facts.sizes.g else facts.hints.by_group and facts.sizes.g > 1


def _grouped(tensors: Tensors, rest: str, part: int) -> str:
    """q, k or v if rows are grouped by key head, each with its own queries first."""
    n = "config.num_heads // config.num_kv_heads"
    widths = f"{n}, 1, 1"
    back = f'.mv("g n d{rest} -> (h:(g n) d){rest}")' if part == 0 else f'.mv("g n d{rest} -> (g n d){rest}")'
    sizes = f"n={n} + 2, d=config.head_dim"
    whole = f'S({tensors.quoted}, "(g n d){rest}", {sizes}).mv("(g n d){rest} -> g n d{rest}", {sizes})'
    if part:
        return f'{whole}.at("n", {n} + {part - 1}).mv("g d{rest} -> (g d){rest}")'
    return f'{whole}.split("n", {widths})[0]{back}'


def _three(tensors: Tensors, texts: Iterable[str]) -> dict[str, str]:
    targets = [PARAMETERS[role].format(p=tensors.p, L="{L}") for role in "qkv"]
    return dict(zip(targets, texts, strict=True))
