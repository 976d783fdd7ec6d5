"""Code for the heads of a projection: rope and the write to a cache, in the epilogue of the product.

A lane is a pair of channels of a head: two that rope rotates together, or two others. So both channels are in the
accumulators of one program. Norms of heads need complete heads in a tile, which leaves most multiprocessors without a
program: they have a launch of their own, with the rope and the writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bringup.compile.kernels.code.index import At, Index
from bringup.compile.kernels.code.types import TYPES, power_of_two
from bringup.compile.kernels.code.writer import Code, NotTaken
from bringup.compile.kernels.select.elements import store_row
from bringup.compile.kernels.select.outputs import columns_of
from bringup.compile.schedule.graph.op_graph import Group, Node, View, whole
from bringup.compile.schedule.graph.roles import Role, products, role_of


@dataclass(slots=True)
class Section:
    """Heads [N, G, K] of a product, their rope, and their stores: buffers of results, and writes to caches."""

    rows: View
    rope: Node | None
    results: list[str] = field(default_factory=list[str])
    writes: list[Node] = field(default_factory=list[Node])


@dataclass(frozen=True, slots=True)
class Heads:
    """The code of `COLUMNS`, and the number of lanes. `share`: see `tiles.tile`."""

    columns: str
    lanes: int
    share: int


def has_heads(group: Group) -> bool:
    """Whether a group applies rope after its product."""
    after = group.nodes[group.nodes.index(products(group)[0]) :]
    return any(role_of(node) is Role.ROTARY for node in after)


def write_heads(code: Code, product: Node, lead: Index) -> Heads:
    """Writes code for every section. `lead` is the index of the rows.

    Raises NotTaken if the group has other nodes after the product, a norm for one.
    """
    sections = _sections(code, product)
    columns = code.graph.buffers[product.outputs[0]].shape[-1]
    halves = [section.rows.shape[2] // 2 for section in sections]
    if len(lead) != 1 or any(section.rows.shape[2] % 2 for section in sections):
        raise NotTaken
    share = 2 if all(half == power_of_two(half) for half in halves) else 4  # head and pair of a lane need a division
    lines = ["def columns(lane):", "c0 = lane * 0 - 1", "c1 = lane * 0 - 1"]
    begin = 0
    for number, (section, half) in enumerate(zip(sections, halves, strict=True)):
        end = begin + half * section.rows.shape[1]
        places = _Places(number, begin, end, half, section, columns)
        lines += places.columns()
        if len(sections) > 1:  # most programs have lanes of one section only
            with code.only_where(f"(first < {end}) & (first + lane.shape[1] > {begin})"):
                _write(code, product, section, places, lead)
        else:
            _write(code, product, section, places, lead)
        begin = end
    return Heads("\n    ".join([*lines, "return c0, c1"]) + "\n", begin, share)


class _Places:
    """The lanes of a section: the variables of their head, the index of their pair, and its two channels."""

    def __init__(self, number: int, begin: int, end: int, half: int, section: Section, columns: int) -> None:
        self.first, self.head_step = columns_of(section.rows, columns)
        self.head, self.pair, self.inside = f"h{number}", f"i{number}", f"in{number}"
        self.channels = (f"a{number}", f"b{number}")
        self.begin, self.end, self.half = begin, end, half
        cos = section.rope.argument("cos_NC") if section.rope else None
        self.rotary = cos.shape[1] if isinstance(cos, View) else 0
        self.interleaved = bool(section.rope and section.rope.argument("interleaved"))

    def lines(self, live: str) -> list[str]:
        rest = self.half - self.rotary
        own, other = (f"{self.pair} * 2", f"{self.pair} * 2 + 1") if self.interleaved else (
            self.pair,
            f"{self.pair} + {self.rotary}",
        )  # fmt: skip
        if rest:
            plain = f"{self.pair} + {self.rotary}" if self.rotary else self.pair
            far = f"{self.pair} + {self.rotary + rest}"
            own = f"tl.where({self.pair} < {self.rotary}, {own}, {plain})" if self.rotary else plain
            other = f"tl.where({self.pair} < {self.rotary}, {other}, {far})" if self.rotary else far
        return [
            f"{self.head} = (lane - {self.begin}) // {self.half}",
            f"{self.pair} = (lane - {self.begin}) % {self.half}",
            f"{self.inside} = {live}(lane >= {self.begin}) & (lane < {self.end})",
            f"{self.channels[0]} = {own}",
            f"{self.channels[1]} = {other}",
        ]

    def columns(self) -> list[str]:
        base = f"{self.first} + {self.head} * {self.head_step}"
        return [
            *self.lines(""),
            *(f"c{n} = tl.where({self.inside}, {base} + {channel}, c{n})" for n, channel in enumerate(self.channels)),
        ]


def _write(code: Code, product: Node, section: Section, places: _Places, lead: Index) -> None:
    code.lines += places.lines("live & ")
    code.masks |= dict.fromkeys([places.head, places.pair, *places.channels], places.inside)
    name, bias = product.outputs[0], product.argument("bias")
    buffer, head = code.graph.buffers[name], At(places.head)
    index = (*lead, head)
    values: list[str] = []
    for n, channel in enumerate(places.channels):
        text = f"acc{n}"
        if isinstance(bias, View):
            column = At(
                code.variable(f"{places.first} + {places.head} * {places.head_step} + {channel}", (At(channel),))
            )
            text = f"{text} + {code.cast(code.at(bias, (column,)), 'float')}"
        values.append(code.given(text, buffer, (*index, At(channel))).text)
    if section.rope:
        values = _rotated(code, section.rope, places, values, lead, index)
    for channel, value in zip(places.channels, values, strict=True):
        place = (*index, At(channel))
        for result in section.results:
            to = code.graph.buffers[result]
            where = code.address(to, whole(to).strides, place)
            code.lines.append(f"tl.store({where}, {value}.to({TYPES[to.dtype]}), mask={places.inside})")
        for node in section.writes:
            cache, slots = node.argument("cache_SGK"), node.argument("slots_N")
            if not isinstance(cache, View) or not isinstance(slots, View):
                raise NotTaken
            slot = code.at(slots, lead)
            store_row(code, cache, (At(slot.text), head, At(channel)), value, places.inside)


def _rotated(code: Code, node: Node, places: _Places, values: list[str], lead: Index, index: Index) -> list[str]:
    cos, sin = node.argument("cos_NC"), node.argument("sin_NC")
    if not isinstance(cos, View) or not isinstance(sin, View):
        raise NotTaken
    one, other = values
    pair = At(places.pair)
    if places.rotary < places.half:
        pair = At(code.variable(f"tl.where({places.pair} < {places.rotary}, {places.pair}, 0)", (pair,)))
    c, s = code.cast(code.at(cos, (*lead, pair)), "float"), code.cast(code.at(sin, (*lead, pair)), "float")
    texts = [f"{one} * {c} - {other} * {s}", f"{other} * {c} + {one} * {s}"]
    if places.rotary < places.half:
        texts = [
            f"tl.where({places.pair} < {places.rotary}, {text}, {own})" for text, own in zip(texts, values, strict=True)
        ]
    buffer = code.graph.buffers[node.outputs[0]]
    return [code.given(text, buffer, (*index, pair)).text for text in texts]


def _sections(code: Code, product: Node) -> list[Section]:
    """The heads that a group stores. Raises NotTaken for nodes that are not part of them."""
    if product.outputs[0] in code.graph.planned:
        raise NotTaken
    found: list[Section] = []
    seen: list[Node] = []
    after = code.group.nodes[code.group.nodes.index(product) + 1 :]
    for node in after:
        if node.short == "write_cache":
            rows = node.argument("rows_NGK")
            if not isinstance(rows, View):
                raise NotTaken
            _section(code, product, rows, found, seen).writes.append(node)
            seen.append(node)
        for name in node.outputs:
            if name in code.graph.planned:
                _section(code, product, whole(code.graph.buffers[name]), found, seen).results.append(name)
    if any(node not in seen for node in after):
        raise NotTaken
    return found


def _section(code: Code, product: Node, view: View, found: list[Section], seen: list[Node]) -> Section:
    """The section whose result is a view; its rope is added to `seen`."""
    rope = None
    while view.buffer != product.outputs[0]:
        node = code.nodes.get(view.buffer)
        source = node.arguments[0] if node else None
        if node is None or view != whole(code.graph.buffers[view.buffer]) or not isinstance(source, View):
            raise NotTaken
        if node.short != "rope" or rope is not None:
            raise NotTaken
        rope = node
        seen.append(node)
        view = source
    if len(view.shape) != 3:
        raise NotTaken
    same = next((each for each in found if (each.rows, each.rope) == (view, rope)), None)
    if same is None:
        same = Section(view, rope)
        found.append(same)
    return same
