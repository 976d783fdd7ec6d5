"""Attention, MLA, and the indexer that selects keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from bringup.compile.kernels.select import attention_calls
from bringup.compile.kernels.select.registry import calls_of
from bringup.graphs.core.step import BLOCK
from tests.kernels.attention import Case, data_of
from tests.kernels.graphs import NUMPY
from tests.kernels.nodes import node_graph
from tests.kernels.selected_keys import KEYS, selected
from tests.kernels.tasks.task import Task, step_of


def attended(case: Case) -> Task:
    data = data_of(case)
    return Task(data.graph, data.buffers)


def prompts(chunk: int | None = None) -> Task:
    """Attention of prompts on sm_90 with two multiprocessors: each program has two parts, of up to three tiles."""
    shape = {"blocks": 5, "dtype": "bfloat16", "channels": 64, "heads": 2, "groups": 1}
    task = attended(Case(lengths=(300, 70), new=(140, 70), window=chunk, chunked=chunk is not None, **shape))
    with patch.dict(attention_calls.PANELS, {"sm_90": 2}):
        calls = calls_of(task.graph, task.graph.groups[0], "sm_90") or ()
    assert [(call.kernel.stem, call.grid) for call in calls] == [("hopper.attention_specialised", (2, 1, 1))]
    return replace(task, calls=calls)


def latent(lengths: Sequence[int], new: Sequence[int], dtype: str) -> Task:
    """Multi-head latent attention: two products by head around attention."""
    random, heads, n, p, c, v, blocks = np.random.default_rng(1), 2, 20, 8, 40, 24, 5
    shapes = {
        **{"q_NHn": (sum(new), heads, n), "q_NHp": (sum(new), heads, p)},
        "rows_S1r": ((len(lengths) * blocks + 1) * BLOCK, 1, c + p),
        **{"to_keys_xc": (heads * n, c), "to_values_yc": (heads * v, c)},
    }
    arrays = {name: random.standard_normal(shape).astype(NUMPY[dtype]) for name, shape in shapes.items()}
    arrays |= step_of(lengths, new, blocks)
    arrays["out"] = np.zeros((sum(new), heads, v), NUMPY[dtype])
    settings = {"step_decode": max(new) == 1, "step_contiguous": False, "step_proposals": False, "scale": 0.1}
    return Task(node_graph("latent_attention", arrays, settings), arrays, kernel="head_product")


def scores_of_keys(dtype: str, *, decode: bool = False) -> Task:
    random, heads, channels, keys, new = np.random.default_rng(2), 5, 24, 64, (1, 1) if decode else (3, 2)
    arrays = {
        "q_NHD": random.standard_normal((sum(new), heads, channels)).astype(NUMPY[dtype]),
        "k_BLD": random.standard_normal((len(new), keys, channels)).astype(NUMPY[dtype]),
        "weights_NH": random.standard_normal((sum(new), heads)).astype(np.float32),
        **step_of((20, 50), new, 1),
        "out": np.zeros((sum(new), keys), np.float32),
    }
    settings = {"step_decode": decode, "step_contiguous": False, "step_proposals": False}
    return Task(node_graph("index_scores", arrays, settings), arrays)


def highest_keys() -> Task:
    random, keys = np.random.default_rng(3), 1500
    positions = np.array([1499])
    scores = np.round(random.standard_normal((len(positions), keys)), 1).astype(np.float32)
    arrays = {"scores_NL": scores, "positions_N": positions, "out": np.zeros(scores.shape, np.bool_)}
    return Task(node_graph("top_keys", arrays, {"count": 5}), arrays)


def positions_of_keys() -> Task:
    mask, positions, keys, _ = (array[4:5] for array in selected(6))
    arrays = {"selected_NL": mask, "positions_N": positions, "out": np.zeros_like(keys)}
    return Task(node_graph("selected_positions", arrays, {"count": 6}), arrays)


def keys_at_positions() -> Task:
    _, _, keys, clean = (array[4:5] for array in selected(6))
    arrays = {"positions_NK": keys, "out": np.zeros_like(clean)}
    return Task(node_graph("marked_keys", arrays, {"length": KEYS}), arrays)
