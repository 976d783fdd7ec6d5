"""Multi-head latent attention and its choice of keys on the PTX emulator, against the direct form in float64."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.graphs.core.step import BLOCK
from tests.kernels.attention import DTYPES
from tests.kernels.emulated import relative
from tests.kernels.nodes import node_graph, result, step_of
from tests.kernels.selected_keys import KEYS, selected

HEADS, N_, P, C, V_ = 3, 20, 8, 40, 24  # heads; channels of a key, of the part that rotates, of the latent, of a value
# Queries by matrices, shares and mixed latents are rounded to the dtype, and the result is.
TOLERANCES = {"float32": 2e-6, "bfloat16": 8e-3, "float16": 1e-3}


DECODE, CHOSEN, PREFILL = ([70, 130], [1, 1], 0, False), ([200], [1], 0, True), ([70, 20], [33, 20], 4, True)


# Each shape, and decode and prefill in both dtypes; on sm_80 what the matrix units multiply; keys without rope.
@pytest.mark.parametrize(
    ("lengths", "new", "padding", "chosen", "dtype", "capability", "rotated"),
    [
        (*DECODE, "bfloat16", "sm_90", P),
        (*CHOSEN, "float32", "sm_90", P),
        (*CHOSEN, "float32", "sm_90", 0),
        pytest.param(*PREFILL, "float32", "sm_90", P, marks=pytest.mark.slow),
        pytest.param(*PREFILL, "bfloat16", "sm_90", P, marks=pytest.mark.slow),
        pytest.param(*PREFILL, "bfloat16", "sm_80", P, marks=pytest.mark.slow),
        pytest.param(*PREFILL, "bfloat16", "sm_90", 0, marks=pytest.mark.slow),
        pytest.param(*CHOSEN, "bfloat16", "sm_80", P, marks=pytest.mark.slow),
    ],
)
def test_it_is_that_of_float64(lengths, new, padding, chosen, dtype, capability, rotated):
    random, blocks = np.random.default_rng(1), 5
    step = step_of(lengths, new, padding, blocks)
    tokens = sum(new) + padding
    kind = DTYPES[dtype]
    sizes = {
        **{"q_NHn": (tokens, HEADS, N_), "q_NHp": (tokens, HEADS, rotated)},
        "rows_S1r": ((len(lengths) * blocks + 1) * BLOCK, 1, C + rotated),
        **{"to_keys_xc": (HEADS * N_, C), "to_values_yc": (HEADS * V_, C)},
    }
    arrays = {name: random.standard_normal(size).astype(kind) for name, size in sizes.items()} | step
    if chosen:
        arrays["selected_NL"] = random.random((tokens, blocks * BLOCK)) < 0.4
        arrays["selected_NL"][:, 0] = True
    arrays["out"] = np.full((tokens, HEADS, V_), np.nan, kind)
    decode = new == [1] * len(new) and not padding
    settings = {"step_decode": decode, "step_contiguous": False, "step_proposals": False, "scale": 0.1}
    given = arrays if rotated else {name: array for name, array in arrays.items() if name != "q_NHp"}
    found = result(node_graph("latent_attention", given, settings), given, capability)
    wide = {name: np.asarray(arrays[name], np.float64) for name in sizes}
    q = np.concatenate([wide["q_NHn"], wide["q_NHp"]], -1)
    token = 0
    expected: list[np.ndarray] = []
    for sequence, (length, count) in enumerate(zip(lengths, new, strict=True)):
        for position in range(length - count, length):
            at = np.arange(position + 1)
            at = at[arrays["selected_NL"][token, at]] if chosen else at
            slots = step["step_block_table"][sequence, at // BLOCK] * BLOCK + at % BLOCK
            rows = wide["rows_S1r"][slots, 0]
            for head in range(HEADS):
                keys = rows[:, :C] @ wide["to_keys_xc"][head * N_ : (head + 1) * N_].T
                values = rows[:, :C] @ wide["to_values_yc"][head * V_ : (head + 1) * V_].T
                scores = np.concatenate([keys, rows[:, C:]], -1) @ q[token, head] * 0.1
                shares = np.exp(scores - scores.max())
                expected.append(shares @ values / shares.sum())
            token += 1
    assert relative(found[:token].reshape(-1, V_), np.stack(expected)) < TOLERANCES[dtype]
    assert np.isfinite(np.asarray(found, np.float64)).all()


@pytest.mark.parametrize(
    ("dtype", "decode", "capability"),
    [
        ("float32", False, "sm_90"),
        ("bfloat16", True, "sm_90"),
        pytest.param("bfloat16", True, "sm_80", marks=pytest.mark.slow),
    ],
)
def test_scores_of_keys(dtype, decode, capability):
    random, heads, channels, keys = np.random.default_rng(2), 5, 24, 128
    lengths, new = ([70, 100], [1, 1]) if decode else ([70, 100, 9], [3, 30, 9])
    step = step_of(lengths, new, 0 if decode else 2, 2)
    tokens = len(step["step_positions"])
    kind = DTYPES[dtype]
    arrays = {
        "q_NHD": random.standard_normal((tokens, heads, channels)).astype(kind),
        "k_BLD": random.standard_normal((len(lengths), keys, channels)).astype(kind),
        "weights_NH": random.standard_normal((tokens, heads)).astype(np.float32),
        **step,
        "out": np.full((tokens, keys), np.nan, np.float32),
    }
    settings = {"step_decode": decode, "step_contiguous": False, "step_proposals": False}
    found = result(node_graph("index_scores", arrays, settings), arrays, capability)
    sequences = np.repeat(np.arange(len(new)), new)
    q, k = (np.asarray(arrays[name], np.float64) for name in ("q_NHD", "k_BLD"))
    products = np.einsum("nhd,nld->nhl", q[: sum(new)], k[sequences])
    expected = np.einsum("nhl,nh->nl", np.maximum(products, 0), arrays["weights_NH"][: sum(new)])
    assert relative(found[: sum(new)], expected) < 1e-6


@pytest.mark.parametrize("count", [1, 5, 2000])
def test_the_first_of_the_highest_scores_are_chosen(count):
    random, keys = np.random.default_rng(3), 1500
    positions = np.array([0, 4, 1023, 1024, 1499, 700])
    scores = np.round(random.standard_normal((len(positions), keys)), 1).astype(np.float32)  # many are equal
    scores[5] = -np.inf
    scores[5, :9] = [0.0, -0.0] * 4 + [1.0]
    arrays = {"scores_NL": scores, "positions_N": positions, "out": np.zeros(scores.shape, np.bool_)}
    found = result(node_graph("top_keys", arrays, {"count": count}), arrays, "sm_90")
    for row, position in enumerate(positions):
        seen = scores[row, : position + 1]
        best = np.argsort(-seen, kind="stable")[:count]
        assert set(np.flatnonzero(found[row, : position + 1])) == set(best)


@pytest.mark.parametrize("count", [6, 2000])
def test_selected_keys_as_positions_and_back(count):
    keys = selected(count)
    arrays = {"selected_NL": keys.mask, "positions_N": keys.positions, "out": np.zeros_like(keys.keys)}
    found = result(node_graph("selected_positions", arrays, {"count": count}), arrays, "sm_90")
    np.testing.assert_array_equal(found, keys.keys)
    arrays = {"positions_NK": keys.keys, "out": np.zeros_like(keys.clean)}
    found = result(node_graph("marked_keys", arrays, {"length": KEYS}), arrays, "sm_90")
    np.testing.assert_array_equal(found, keys.clean)
