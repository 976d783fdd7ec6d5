"""Cases of attention: a step with its caches, the graph of one node, and the result in numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from bringup.compile.schedule.graph.op_graph import Argument, Buffer, Group, Node, OpGraph, View, whole
from bringup.graphs.core.step import BLOCK, FIELDS

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@dataclass(frozen=True, kw_only=True)
class Case:
    """`new` tokens of each sequence, of `lengths` in all. `blocks`: a sequence's entries of the block table."""

    lengths: tuple[int, ...]
    new: tuple[int, ...] = ()  # none: decode
    padding: int = 0
    heads: int = 4
    groups: int = 2
    channels: int = 16
    values: int = 0
    dtype: str = "float32"
    cache: str = ""
    blocks: int = 3
    window: int | None = None
    chunked: bool = False
    ring: int | None = None
    has_sinks: bool = False
    has_slopes: bool = False
    has_chosen: bool = False
    softcap: float | None = None
    contiguous: bool = False
    query_part: int = 0  # columns of the buffer of queries before them, as in a product of Q, K and V
    seed: int = field(default=0)

    @property
    def decode(self) -> bool:
        return not self.new


@dataclass(frozen=True)
class Data:
    """`expected` has rows of tokens, padding apart."""

    graph: OpGraph
    buffers: dict[str, np.ndarray]
    expected: np.ndarray


def data_of(case: Case) -> Data:
    random = np.random.default_rng(case.seed)
    counts = case.new or (1,) * len(case.lengths)
    sequences, tokens = len(counts), sum(counts) + case.padding
    values = case.values or case.channels
    slots = case.ring * (sequences + 1) if case.ring else (sequences * case.blocks + 1) * BLOCK
    dtype, cached = DTYPES[case.dtype], DTYPES[case.cache or case.dtype]
    width = case.query_part + case.heads * case.channels
    arrays = {
        "q": random.standard_normal((tokens, width)).astype(dtype),
        "k": random.standard_normal((slots, case.groups, case.channels)).astype(cached),
        "v": random.standard_normal((slots, case.groups, values)).astype(cached),
        "out": np.full((tokens, case.heads, values), np.nan, dtype),
    }
    table = np.arange(sequences * case.blocks).reshape(sequences, case.blocks)
    rows = np.arange(sequences)
    if not case.contiguous:
        table, rows = random.permutation(table.ravel()).reshape(table.shape), random.permutation(rows)
    written = np.zeros(slots, np.bool_)
    for sequence, length in enumerate(case.lengths):
        at = np.arange(length)
        if case.ring:
            written[rows[sequence] * case.ring + at % case.ring] = True
        else:
            written[table[sequence, at // BLOCK] * BLOCK + at % BLOCK] = True
    arrays["k"][~written] = arrays["v"][~written] = np.nan  # no kernel may use them
    starts = np.concatenate([[0], np.cumsum(counts)])
    positions = [np.arange(length - count, length) for length, count in zip(case.lengths, counts, strict=True)]
    step = {
        **{"tokens": np.zeros(tokens), "slots": np.zeros(tokens), "starts": starts, "block_table": table, "rows": rows},
        **{"positions": np.concatenate([*positions, np.zeros(case.padding)])},
        **{"lengths": np.array(case.lengths), "totals": np.array(case.lengths), "certain": np.array(counts)},
    }
    arrays |= {f"step:{name}": step[name].astype(np.int64) for name in FIELDS}
    if case.has_sinks:
        arrays["sinks"] = random.standard_normal(case.heads).astype(dtype)
    if case.has_slopes:
        arrays["slopes"] = (0.1 * random.random(case.heads)).astype(np.float32)
    if case.has_chosen:
        arrays["selected"] = random.random((tokens, case.blocks * BLOCK)) < 0.3
    return Data(_graph(case, arrays), arrays, _expected(case, arrays, counts))


def _graph(case: Case, arrays: dict[str, np.ndarray]) -> OpGraph:
    kinds = {"out": "temporary", "q": "temporary", "k": "state", "v": "state", "sinks": "weight"}
    buffers = {
        name: Buffer(
            name=name,
            shape=array.shape,
            dtype=array.dtype.name,
            kind="step" if ":" in name else kinds.get(name, "temporary"),
        )
        for name, array in arrays.items()
    }
    tokens, width = arrays["q"].shape
    q = View("q", (tokens, case.heads, case.channels), (width, case.channels, 1), case.query_part)
    optional: dict[str, Argument] = {
        f"{name}_{axes}": whole(buffers[name]) if name in buffers else None
        for name, axes in (("sinks", "H"), ("slopes", "H"), ("selected", "NL"))
    }
    arguments: dict[str, Argument] = {
        **{"q_NHK": q, "k_SGK": whole(buffers["k"]), "v_SGV": whole(buffers["v"])},
        **{f"step_{name}": whole(buffers[f"step:{name}"]) for name in FIELDS},
        **{
            "step_decode": case.decode,
            "step_contiguous": case.contiguous,
            "step_proposals": False,
            "scale": case.channels**-0.5,
        },
        **{"window": case.window, "chunked": case.chunked, "ring": case.ring, "softcap": case.softcap},
        **optional,
    }
    node = Node(
        op="bringup.attention.default", names=tuple(arguments), arguments=tuple(arguments.values()), outputs=("out",)
    )
    return OpGraph("f", buffers, (Group((node,)),), (whole(buffers["out"]),))


def _expected(case: Case, arrays: dict[str, np.ndarray], counts: tuple[int, ...]) -> np.ndarray:
    """Query by query, as the docstring of `attention` says."""
    q = np.asarray(arrays["q"], np.float64)[:, case.query_part :].reshape(-1, case.heads, case.channels)
    k, v = np.asarray(arrays["k"], np.float64), np.asarray(arrays["v"], np.float64)
    rows: list[np.ndarray] = []
    token = 0
    for sequence, (length, count) in enumerate(zip(case.lengths, counts, strict=True)):
        for position in range(length - count, length):
            size = case.window or length
            at = np.arange(max(0, position // size * size if case.chunked else position + 1 - size), position + 1)
            if case.has_chosen:
                at = at[arrays["selected"][token, at]]
            if case.ring:
                at = at[at >= length - case.ring]
                slots = arrays["step:rows"][sequence] * case.ring + at % case.ring
            else:
                slots = arrays["step:block_table"][sequence, at // BLOCK] * BLOCK + at % BLOCK
            rows.append(np.stack([_head(case, arrays, q[token], k[slots], v[slots], at - position, h)
                                  for h in range(case.heads)]))  # fmt: skip
            token += 1
    return np.stack(rows)


def _head(
    case: Case,
    arrays: dict[str, np.ndarray],
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    distance: np.ndarray,
    head: int,
) -> np.ndarray:
    group = head // (case.heads // case.groups)
    scores = k[:, group] @ q[head] * case.channels**-0.5
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    if case.has_slopes:
        scores = scores + float(arrays["slopes"][head]) * distance
    sinks = [float(arrays["sinks"][head])] if case.has_sinks else []
    if not len(scores):
        return np.zeros(v.shape[2])
    top = max([scores.max(), *sinks])
    shares = np.exp(scores - top)
    return shares @ v[:, group] / (shares.sum() + sum(np.exp(sink - top) for sink in sinks))
