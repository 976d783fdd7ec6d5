"""The choice of keys on the CPU against numpy in float64. Rows of caches that nothing may read are NaN."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.graphs.core.step import BLOCK
from tests.kernels.emulated import relative
from tests.kernels.nodes import node_graph, step_of
from tests.kernels.selected_keys import KEYS, selected
from tests.llvm.native import run

COUNTS = {"decode": ([70, 100], [1, 1], 0), "prefill": ([70, 100, 9], [3, 30, 9], 2)}


@pytest.mark.parametrize("contiguous", [False, True])
def test_rows_of_a_cache_are_in_order(contiguous: bool) -> None:
    lengths, blocks = ([100] if contiguous else [70, 100]), 2
    step = step_of(lengths, [1] * len(lengths), 0, blocks)
    if contiguous:
        step["step_block_table"] = np.arange(blocks)[None]
    cache = np.random.default_rng(1).standard_normal(((len(lengths) * blocks + 1) * BLOCK, 1, 7)).astype(np.float16)
    out = np.full((len(lengths), blocks * BLOCK, 1, 7), np.nan, np.float16)
    arrays = {"cache_SGK": cache, **step, "out": out}
    settings = {"step_decode": True, "step_contiguous": contiguous, "step_proposals": False, "ring": None}
    found = run(node_graph("cached_rows", arrays, settings), arrays, threads=3).read("out")
    for sequence, length in enumerate(lengths):
        at = np.arange(length)
        slots = step["step_block_table"][sequence, at // BLOCK] * BLOCK + at % BLOCK
        np.testing.assert_array_equal(found[sequence, :length], cache[slots])


@pytest.mark.parametrize(("stage", "dtype"), [("decode", "float32"), ("prefill", "float32"), ("decode", "float16")])
def test_scores_of_keys(stage: str, dtype: str) -> None:
    random, heads, channels, keys = np.random.default_rng(2), 5, 27, 128
    lengths, new, padding = COUNTS[stage]
    step = step_of(lengths, new, padding, 2)
    tokens = len(step["step_positions"])
    arrays = {
        "q_NHD": random.standard_normal((tokens, heads, channels)).astype(dtype),
        "k_BLD": random.standard_normal((len(lengths), keys, channels)).astype(dtype),
        "weights_NH": random.standard_normal((tokens, heads)).astype(np.float32),
        **step,
        "out": np.full((tokens, keys), np.nan, np.float32),
    }
    for sequence, length in enumerate(lengths):
        arrays["k_BLD"][sequence, length:] = np.nan
    settings = {"step_decode": stage == "decode", "step_contiguous": False, "step_proposals": False}
    sequences = np.repeat(np.arange(len(new)), new)
    q, k = (np.asarray(arrays[name], np.float64) for name in ("q_NHD", "k_BLD"))
    products = np.einsum("nhd,nld->nhl", q[: sum(new)], k[sequences])
    expected = np.einsum("nhl,nh->nl", np.maximum(products, 0), arrays["weights_NH"][: sum(new)])
    seen = np.arange(keys) <= step["step_positions"][: sum(new), None]
    for threads in (1, 5):
        found = run(node_graph("index_scores", arrays, settings), arrays, threads=threads).read("out")
        assert relative(found[: sum(new)][seen], expected[seen]) < 1e-6


@pytest.mark.parametrize("machine", ["host", "generic"])
@pytest.mark.parametrize("count", [1, 5, 2000])
def test_the_first_of_the_highest_scores_are_chosen(count: int, machine: str) -> None:
    random, keys = np.random.default_rng(3), 1500
    positions = np.array([0, 4, 1023, 1024, 1499, 700])
    scores = np.round(random.standard_normal((len(positions), keys)), 1).astype(np.float32)  # many are equal
    scores[3] *= 1e-41  # below the normal numbers
    scores[5] = -np.inf
    scores[5, :9] = [0.0, -0.0] * 4 + [1.0]
    for row, position in enumerate(positions):
        scores[row, position + 1 :] = np.nan
    arrays = {"scores_NL": scores, "positions_N": positions, "out": np.ones(scores.shape, np.bool_)}
    found = run(node_graph("top_keys", arrays, {"count": count}), arrays, machine, threads=4).read("out")
    for row, position in enumerate(positions):
        best = np.argsort(-scores[row, : position + 1], kind="stable")[:count]
        assert set(np.flatnonzero(found[row])) == set(best)


@pytest.mark.parametrize("count", [6, 2000])
def test_selected_keys_as_positions_and_back(count: int) -> None:
    keys = selected(count)
    arrays = {"selected_NL": keys.mask, "positions_N": keys.positions, "out": np.zeros_like(keys.keys)}
    found = run(node_graph("selected_positions", arrays, {"count": count}), arrays, threads=4).read("out")
    np.testing.assert_array_equal(found, keys.keys)
    arrays = {"positions_NK": keys.keys, "out": np.ones_like(keys.clean)}
    found = run(node_graph("marked_keys", arrays, {"length": KEYS}), arrays, threads=4).read("out")
    np.testing.assert_array_equal(found, keys.clean)
