"""Calls of the attention kernels: decode, with one query for each sequence, and prefill, with packed prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bringup.compile.kernels.call import Constant, KernelCall
from bringup.compile.kernels.code.types import ALIGNMENT, power_of_two, size_of
from bringup.compile.kernels.select.attention_tiles import (
    TENSOR_CORE,
    decode_tiles,
    fits_early,
    has_two_loops,
    parts_of,
    prefill_tiles,
    supports_e4m3,
)
from bringup.compile.kernels.select.tensors import (
    COUNTERS,
    Parameter,
    Tensor,
    argument_of,
    call_of,
    counters,
    dense_tensor,
    workspace,
)
from bringup.compile.kernels.select.tiles import PANELS, SPECIALISED, TALLEST
from bringup.compile.schedule.graph.op_graph import Node, OpGraph
from bringup.graphs.core.step import BLOCK

WIDE = "float32"
_GENERAL = ("V", "K1", "K2", "V1", "WIDE", "SOFTCAP")  # constants that `attention_specialised` does not have
NARROW = ("bfloat16", "float16")
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


@dataclass(frozen=True, kw_only=True)
class Step:
    """The fields of a step that kernels read; see `graphs.core.step.Step`."""

    positions: Tensor
    starts: Tensor
    block_table: Tensor
    rows: Tensor
    lengths: Tensor
    certain: Tensor
    decode: bool
    contiguous: bool
    proposals: bool

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return self.lengths.shape[0]

    @property
    def length(self) -> int:
        """Maximum number of keys of a sequence."""
        return self.block_table.shape[1] * BLOCK


@dataclass(frozen=True, kw_only=True)
class Attention:
    """`attention` of queries [N, H, K] over keys [S, G, K] and values [S, G, V]; the result is `out` [N, H, V].

    `out` and the optional tensors are contiguous.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    step: Step
    scale: float
    window: int | None = None
    chunked: bool = False
    ring: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    slopes: Tensor | None = None
    chosen: Tensor | None = None

    @property
    def wide(self) -> bool:
        """Whether products are computed in float32. Conversion of 8-bit floats to 16 bits is exact."""
        cached = {self.k.dtype, self.v.dtype} - {E4M3, E5M2}
        return self.q.dtype == WIDE or bool(cached - {self.q.dtype})

    @property
    def heads_each(self) -> int:
        """Number of query heads for each key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def keys_seen(self) -> int:
        """Maximum number of keys that a query attends to."""
        return min(size for size in (self.step.length, self.window, self.ring) if size is not None)

    def is_taken(self, capability: str) -> bool:
        """Whether a kernel supports these dtypes and strides on an architecture."""
        cached = (WIDE, *NARROW, E5M2, *((E4M3,) if supports_e4m3(capability) else ()))
        others = (self.sinks, self.slopes, self.chosen)
        return (
            self.q.dtype in (WIDE, *NARROW)
            and all(each.dtype in cached for each in (self.k, self.v))
            and all(each.strides[2] == 1 for each in (self.q, self.k, self.v))
            and all(each is None or each.is_dense for each in others)
        )

    @property
    def is_known(self) -> bool:
        """Whether a step writes only the queries, the rows of new tokens and the selected keys, no other operand."""
        step = self.step
        read = (self.k, self.v, step.positions, step.block_table, step.rows, step.lengths, self.sinks, self.slopes)
        return all(each is None or each.kind in ("weight", "state", "step") for each in read)

    @property
    def is_specialised(self) -> bool:
        """Whether `attention_specialised` supports it, of prompts. With a ring and 128 channels it would spill."""
        given = (self.q, self.k, self.v)
        dtypes = {each.dtype for each in given}
        places = [each.place.offset for each in given]
        places += [stride * size_of(each.dtype) for each in given for stride in each.strides[:2]]
        return (
            len(dtypes) == 1
            and dtypes <= set(NARROW)
            and self.k.shape[2] == self.v.shape[2]
            and self.k.shape[2] in ((64, 128) if self.ring is None else (64,))
            and (self.ring is None or self.window is not None)
            and self.softcap is None
            and self.chosen is None
            and all(place % ALIGNMENT == 0 for place in places)
        )

    def rows(self) -> dict[str, Parameter]:
        """The parameters that determine the rows of a sequence in the caches."""
        ring, direct = self.ring is not None, self.step.contiguous
        return {
            "block_table_BP": None if direct or ring else self.step.block_table,
            "rows_B": self.step.rows if ring and not direct else None,
            "lengths_B": self.step.lengths if ring else None,
        }

    def constants(self) -> dict[str, Constant]:
        """Sizes and strides. Channels of keys are in two parts (`parts_of`), those of values are a power of two."""
        first, rest = parts_of(self.k.shape[2])
        return {
            **{"H": self.q.shape[1], "G": self.k.shape[1], "K": self.k.shape[2], "V": self.v.shape[2]},
            **{"K1": first, "K2": rest, "V1": max(TENSOR_CORE, power_of_two(self.v.shape[2]))},
            **{"Q_ROW": self.q.strides[0], "Q_HEAD": self.q.strides[1]},
            **{"K_ROW": self.k.strides[0], "K_HEAD": self.k.strides[1]},
            **{"V_ROW": self.v.strides[0], "V_HEAD": self.v.strides[1]},
            **{"TABLE": self.step.block_table.shape[1], "LENGTH": self.step.length, "WIDE": self.wide},
            **{"WINDOW": self.window, "CHUNKED": self.chunked, "RING": self.ring, "SOFTCAP": self.softcap},
        }


def step_of(graph: OpGraph, node: Node) -> Step:
    """The step among the arguments of a node."""
    fields: Mapping[str, Tensor | None] = {
        name: argument_of(graph, node, f"step_{name}")
        for name in ("positions", "starts", "block_table", "rows", "lengths", "certain")
    }
    present = {name: field for name, field in fields.items() if field is not None}
    names = ("decode", "contiguous", "proposals")
    decode, contiguous, proposals = (node.argument(f"step_{name}") is True for name in names)
    return Step(**present, decode=decode, contiguous=contiguous, proposals=proposals)


def attention_call(attention: Attention, capability: str, begin: int = COUNTERS) -> KernelCall:
    """The call of a supported attention. The scratch memory before `begin` (in bytes) belongs to the caller."""
    call = _decode(attention, capability, begin) if attention.step.decode else _prefill(attention, capability)
    return call if begin == COUNTERS else replace(call, scratch=max(call.scratch, begin))


def _prefill(attention: Attention, capability: str) -> KernelCall:
    if capability in SPECIALISED and attention.q.shape[0] > TALLEST and attention.is_specialised:
        return _specialised(attention, PANELS[capability])
    tokens, heads, channels = attention.q.shape
    tiles = prefill_tiles(attention.wide, channels, attention.v.shape[2], tokens, capability)
    parameters: dict[str, Parameter] = {
        **{"q_NHK": attention.q, "k_SGK": attention.k, "v_SGV": attention.v},
        **{"positions_N": attention.step.positions, "starts": attention.step.starts},
        **attention.rows(),
        **{"out_NHV": attention.out, "scale": attention.scale},
        **{"sinks_H": attention.sinks, "slopes_H": attention.slopes, "selected_NL": attention.chosen},
    }
    sizes = {"N": tokens, "B": attention.step.sequences, "QUERIES": tiles.rows, "KEYS": tiles.keys}
    sizes |= {"TWICE": has_two_loops(attention.wide, channels, capability)}
    grid = (-(-tokens // tiles.rows), heads, attention.step.sequences + 1)
    constants = attention.constants() | sizes
    return call_of("attention_prefill", parameters, constants, grid, warps=tiles.warps, stages=tiles.stages)


def _specialised(attention: Attention, processors: int) -> KernelCall:
    """One call of `attention_specialised`, with a program for each of `processors`, or for each part."""
    tokens, heads, _ = attention.q.shape
    parameters: dict[str, Parameter] = {
        **{"q_NHK": attention.q, "k_SGK": attention.k, "v_SGK": attention.v},
        **{"positions_N": attention.step.positions, "starts": attention.step.starts},
        **attention.rows(),
        **{"out_NHK": attention.out, "scale": attention.scale},
        **{"sinks_H": attention.sinks, "slopes_H": attention.slopes},
    }
    sequences = attention.step.sequences
    sizes = {"N": tokens, "B": sequences, "B_OR_MORE": power_of_two(max(32, sequences))}
    sizes |= {"QUERIES": TALLEST, "KEYS": TALLEST, "STAGES": 4}
    constants = {name: value for name, value in attention.constants().items() if name not in _GENERAL}
    parts = -(-tokens // TALLEST) * sequences * heads
    grid = (min(processors, parts), 1, 1)
    return call_of("hopper.attention_specialised", parameters, constants | sizes, grid, warps=8, stages=1)


def _decode(attention: Attention, capability: str, begin: int) -> KernelCall:
    sequences, heads, channels = attention.q.shape
    groups, values = attention.k.shape[1], attention.v.shape[2]
    tiles = decode_tiles(attention.wide, channels, values, attention.heads_each, capability)
    programs = groups * -(-attention.heads_each // tiles.rows)
    splits = tiles.splits(programs * sequences, attention.keys_seen)
    count = counters(4 * programs * sequences)
    if count is None or splits == 1:
        splits, scratch, parts = 1, 0, dict[str, Parameter](mixed_BHSV=None, top_BHS=None, total_BHS=None, count=None)
    else:
        each = (sequences, heads, splits)
        nbytes = 4 * sequences * heads * splits
        (mixed, top, total), scratch = workspace([nbytes * values, nbytes, nbytes], begin)
        parts = {
            **{"mixed_BHSV": dense_tensor(mixed, WIDE, (*each, values)), "top_BHS": dense_tensor(top, WIDE, each)},
            **{"total_BHS": dense_tensor(total, WIDE, each)},
            "count": dense_tensor(count, "int32", (sequences, programs)),
        }
    parameters: dict[str, Parameter] = {
        **{"q_NHK": attention.q, "k_SGK": attention.k, "v_SGV": attention.v},
        **{"positions_B": attention.step.positions},
        **attention.rows(),
        **{"out_BHV": attention.out, "scale": attention.scale},
        **{"sinks_H": attention.sinks, "slopes_H": attention.slopes, "chosen_BL": attention.chosen},
        **parts,
    }
    constants = attention.constants() | {
        **{"SPLITS": splits, "WIDTH": power_of_two(splits), "LEAST": tiles.min_tiles},
        **{"HEADS": tiles.rows, "KEYS": tiles.keys},
        "KNOWN": attention.is_known and fits_early(attention.wide, channels, capability),
    }
    grid = (splits, programs, sequences)
    settings = {"warps": tiles.warps, "stages": tiles.stages, "scratch": scratch}
    return call_of("attention_decode", parameters, constants, grid, **settings)
