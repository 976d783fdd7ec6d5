"""Forms that depend on the sequences of a step: attention over caches, selected keys, LoRAs; and packed weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bringup.compile.schedule.graph.op_graph import View
from bringup.graphs.core.step import BLOCK
from tests.kernels.attention import Case, data_of
from tests.kernels.graphs import NUMPY
from tests.kernels.nodes import node_graph
from tests.kernels.quant_weights import Weight
from tests.llvm.cases.drawn import FLOATS, Draw, Drawn, Form, Random, Wanted, floats
from tests.llvm.native import separate
from tests.llvm.products import ALONG, FORMS, in_int8
from tests.llvm.test_indexer import step_of

DISTRIBUTIONS = ("plain", "zeros", "tiny", "wide")


def attention(r: Random) -> Form:
    """One query of each sequence, or packed prompts; windows, rings, sinks, ALiBi, chosen keys, narrower caches."""
    groups, decode, way = int(r.choice([1, 2])), bool(r.random() < 0.5), int(r.integers(8))
    dtype, window = str(r.choice(FLOATS)), int(r.choice([17, 50])) if r.random() < 0.3 else None
    channels, values = int(r.choice([8, 16, 23])), int(r.choice([0, 0, 12, 41]))
    if way == 0:
        window = 50
    chunked = window is not None and bool(r.random() < 0.3)
    blocks, longest = (5, 300) if way == 0 else (10, 600) if decode and way > 5 else (3, 190)  # 600: of two spans
    base = Case(
        lengths=(1,), heads=groups * int(r.choice([1, 2, 3, 5])), groups=groups, channels=channels, values=values,
        dtype=dtype, cache=str(r.choice(["", "bfloat16"])), window=window, chunked=chunked,
        ring=128 if way == 0 else None, blocks=blocks, has_sinks=way == 1, has_slopes=way == 2,
        softcap=3.0 if way == 3 else None, has_chosen=way == 4, contiguous=way == 5, query_part=int(r.choice([0, 5])),
    )  # fmt: skip

    def draw(random: Random, distribution: str) -> Draw:
        count = 1 if base.contiguous else int(random.integers(1, 4))
        lengths = tuple(int(n) for n in random.integers(1, random.choice([3, 70, longest]), count))
        new = () if decode else tuple(int(random.integers(1, min(n, 12) + 1)) for n in lengths)
        padding = 0 if decode else int(random.choice([0, 4]))
        case = replace(base, lengths=lengths, new=new, padding=padding, seed=int(random.integers(2**32)))
        data = data_of(case)
        size = float(np.abs(data.expected).max())
        return Draw(data.graph, data.buffers, {"out": Wanted(data.expected, 24.0, size, len(data.expected))})

    return Form(f"attention of {'decode' if decode else 'prefill'}", draw)


def quantised(r: Random) -> Form:
    """Products of activations in floats or in int8; blocks of experts; look-ups; whole parameters."""
    form, way = str(r.choice([*FORMS, *ALONG])), int(r.choice([0, 0, 0, 1, 2, 3]))
    dtype, activations = str(r.choice(["float32", "bfloat16"])), str(r.choice(["", "", "int8"]))
    activations = activations if way < 2 and form != "act-order" else ""
    rows, columns = int(r.choice([1, 1, 2, 3, 13, 18])), 16 * int(r.integers(1, 4))
    columns -= int(r.integers(16)) if form in ALONG else 0
    channels = 256 * int(r.integers(1, 3)) if form.startswith(("q4_k", "q6_k")) else 128 * int(r.integers(1, 4))
    lead = (3,) if way == 1 or (way == 3 and r.random() < 0.5) else ()
    f = Drawn(r)
    weight = Weight(f, "w", (FORMS | ALONG)[form], (*lead, columns, channels), dtype, activations)
    numbers, parts = weight.numbers, dict(f.arrays)

    def draw(random: Random, distribution: str) -> Draw:
        f.arrays, f.nodes, f.random = dict(parts), [], random
        wanted = (_product, _experts, _rows, _whole)[way](f, weight, numbers, dtype, rows, distribution)
        return Draw(separate(f.graph("y")), f.started(), {"y": wanted})

    name = ("quant_linear", "quant_experts", "quant_embedding", "dequantise")[way]
    return Form(f"{name} of {form}{', int8 activations' if activations else ''}", draw)


def _rounded(x: np.ndarray, weight: Weight) -> np.ndarray:
    return in_int8(x) if weight.arguments["weight_activations"] else x.astype(np.float64)


def _product(f: Drawn, weight: Weight, numbers: np.ndarray, dtype: str, rows: int, distribution: str) -> Wanted:
    columns, channels = numbers.shape
    gap = int(f.random.choice([0, 3]))
    held = f.array("x", _plain(f.random, (rows, channels + gap), distribution, dtype), dtype, "temporary")
    x = View(held.buffer, (rows, channels), (channels + gap, 1), gap)
    bias = f.given("b", (columns,), dtype)
    f.node("bringup.quant_linear.default", {"y": ((rows, columns), dtype)}, x=x, bias=bias, **weight.arguments)
    wide, own = _rounded(f.arrays["x"][:, gap:], weight), f.arrays["b"].astype(np.float64)
    return Wanted(wide @ numbers.T + own, 24.0, _largest(np.abs(wide) @ np.abs(numbers).T + np.abs(own)))


def _experts(f: Drawn, weight: Weight, numbers: np.ndarray, dtype: str, rows: int, distribution: str) -> Wanted:
    number, columns, channels = numbers.shape
    blocks = int(f.random.integers(1, 5))
    x = f.array("x", _plain(f.random, (blocks, rows, channels), distribution, dtype), dtype, "temporary")
    chosen = f.random.integers(0, number, blocks)
    expert, bias = f.array("e", chosen, "int64", "value"), f.given("b", (number, columns), dtype)
    shapes = {"y": ((blocks, rows, columns), dtype)}
    f.node("bringup.quant_experts.default", shapes, x_BRi=x, bias_eo=bias, expert_B=expert, **weight.arguments)
    wide = _rounded(f.arrays["x"].reshape(-1, channels), weight).reshape(blocks, rows, channels)
    own = f.arrays["b"].astype(np.float64)[chosen][:, None]
    wanted, sizes = (
        np.einsum("bri,boi->bro", change(wide), change(numbers)[chosen]) + change(own)
        for change in (np.asarray, np.abs)
    )
    return Wanted(wanted, 24.0, _largest(sizes))


def _rows(f: Drawn, weight: Weight, numbers: np.ndarray, dtype: str, rows: int, distribution: str) -> Wanted:
    chosen = f.random.integers(0, len(numbers), rows)
    listed = f.array("n", chosen, "int64", "value")
    shapes = {"y": ((rows, numbers.shape[1]), dtype)}
    f.node("bringup.quant_embedding.default", shapes, rows_N=listed, **weight.arguments)
    return Wanted(numbers[chosen], 4.0, float(np.abs(numbers).max()))


def _whole(f: Drawn, weight: Weight, numbers: np.ndarray, dtype: str, rows: int, distribution: str) -> Wanted:
    f.node("bringup.dequantise.default", {"y": (numbers.shape, dtype)}, **weight.arguments)
    return Wanted(numbers, 4.0, float(np.abs(numbers).max()))


def _plain(random: Random, shape: tuple[int, ...], distribution: str, dtype: str) -> np.ndarray:
    return floats(random, shape, distribution if distribution in DISTRIBUTIONS else "plain", dtype)


def _largest(sizes: np.ndarray) -> float:
    """The largest sum of sizes."""
    return float(sizes.max(initial=0.0))


def lora(r: Random) -> Form:
    """Factors of each sequence's slot; slots that no sequence has are NaN, and below 0 is none."""
    op, decode, dtype = str(r.choice(["lora_shrink", "lora_expand"])), bool(r.random() < 0.5), str(r.choice(FLOATS))

    def draw(random: Random, distribution: str) -> Draw:
        count, slots = int(random.integers(1, 5)), int(random.integers(1, 5))
        new = [1] * count if decode else [int(n) for n in random.integers(0, 6, count)]
        if not decode and not sum(new):
            new[0] = 1
        padding, own = 0 if decode else int(random.integers(0, 4)), random.integers(-1, slots, count)
        step = step_of([each + 3 for each in new], new, padding, 1)
        tokens, rank, wide = sum(new) + padding, int(random.integers(1, 9)), int(random.integers(1, 60))
        shrinks = op == "lora_shrink"
        x = _plain(random, (tokens, wide if shrinks else rank), distribution, dtype)
        weight = random.standard_normal((slots, rank, wide)).astype(NUMPY[dtype])
        weight[[n for n in range(slots) if n not in own]] = np.nan
        out = rank if shrinks else wide
        names = ("x_Ni", "a_Sri") if shrinks else ("h_Nr", "b_Sro")
        arrays = {names[0]: x, names[1]: weight, "slots_B": own, **step, "out": np.full((tokens, out), np.nan, x.dtype)}
        wanted, sizes = np.zeros((tokens, out)), np.zeros((tokens, out))
        for token, slot in enumerate(np.repeat(own, new)):
            if slot >= 0:
                factors = weight[slot].astype(np.float64)
                factors = factors.T if shrinks else factors
                wanted[token] = x[token].astype(np.float64) @ factors
                sizes[token] = np.abs(x[token].astype(np.float64)) @ np.abs(factors)
        graph = node_graph(op, arrays, {"step_decode": decode, "step_contiguous": False, "step_proposals": False})
        return Draw(graph, arrays, {"out": Wanted(wanted, 16.0, sizes)})

    return Form(op, draw)


def keys(r: Random) -> Form:
    """Which keys attention sees: the first of the highest scores, also of equal ones, among those before a token."""
    dtype = str(r.choice(FLOATS))

    def draw(random: Random, distribution: str) -> Draw:
        tokens, count, length = (
            int(random.integers(1, 6)),
            int(random.choice([1, 5, 60, 2000])),
            int(random.integers(2, 300)),
        )
        positions = random.integers(0, length, tokens)
        scores = _plain(random, (tokens, length), distribution, dtype)
        if random.random() < 0.5:
            scores = np.round(scores.astype(np.float32)).astype(scores.dtype)
        wanted = np.zeros((tokens, length))
        for row, position in enumerate(positions):
            scores[row, position + 1 :] = np.nan
            best = np.argsort(-scores[row, : position + 1].astype(np.float64), kind="stable")[:count]
            wanted[row, best] = 1.0
        arrays = {"scores_NL": scores, "positions_N": positions, "out": np.ones((tokens, length), np.bool_)}
        return Draw(node_graph("top_keys", arrays, {"count": count}), arrays, {"out": Wanted(wanted)})

    return Form("top_keys", draw)


def scores(r: Random) -> Form:
    """Scores of keys, of which only those before a token count: others may be anything."""
    dtype, decode = str(r.choice(FLOATS)), bool(r.random() < 0.5)

    def draw(random: Random, distribution: str) -> Draw:
        lengths = [int(n) for n in random.integers(1, 100, int(random.integers(1, 4)))]
        new = [1] * len(lengths) if decode else [int(random.integers(1, min(n, 20) + 1)) for n in lengths]
        heads, channels, length = int(random.integers(1, 7)), int(random.integers(1, 50)), 2 * BLOCK
        step = step_of(lengths, new, 0, 2)
        tokens = sum(new)
        q, k = (
            _plain(random, (tokens, heads, channels), distribution, dtype),
            floats(random, (len(lengths), length, channels), "plain", dtype),
        )
        weights = random.standard_normal((tokens, heads)).astype(np.float32)
        for sequence, size in enumerate(lengths):
            k[sequence, size:] = np.nan
        arrays = {"q_NHD": q, "k_BLD": k, "weights_NH": weights, **step, "out": np.zeros((tokens, length), np.float32)}
        products = np.einsum(
            "nhd,nld->nhl", q.astype(float), np.nan_to_num(k.astype(float))[np.repeat(np.arange(len(new)), new)]
        )
        sizes = np.einsum(
            "nhd,nld->nhl",
            np.abs(q.astype(float)),
            np.abs(np.nan_to_num(k.astype(float)))[np.repeat(np.arange(len(new)), new)],
        )
        wanted = np.einsum("nhl,nh->nl", np.maximum(products, 0), weights)
        seen = np.arange(length) <= step["step_positions"][:, None]
        size = np.where(seen, np.einsum("nhl,nh->nl", sizes, np.abs(weights)), np.inf)
        graph = node_graph(
            "index_scores", arrays, {"step_decode": decode, "step_contiguous": False, "step_proposals": False}
        )
        return Draw(graph, arrays, {"out": Wanted(wanted, 16.0, size)})

    return Form("index_scores", draw)
