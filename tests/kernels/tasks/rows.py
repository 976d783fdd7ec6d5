"""Norms, routing, look-ups, and the assignment of rows to experts."""

from __future__ import annotations

import numpy as np

from bringup.compile.schedule.graph.op_graph import DType, View
from tests.kernels.graphs import Function
from tests.kernels.tasks.task import Task, task_of


def normed_rows(dtype: str = "float32") -> Task:
    f, shape = Function(), (2, 1500)
    x, more = f.given("x", shape, dtype, "value"), f.given("more", shape, dtype, "value")
    scale, shift = (f.given(name, shape[1:], dtype) for name in ("scale", "shift"))
    one = f.node("bringup.layer_norm.default", {"n": (shape, dtype)}, x=x, weight=scale, bias=shift, eps=1e-5)
    f.node("aten.add.Tensor", {"out": (shape, dtype)}, self=one, other=more, alpha=1)
    return task_of(f, "out")


def normed_in_float8(rows: int, dtype: str) -> Task:
    """A norm whose rows are rounded to float8, 128 columns at a time, and stored as well."""
    f, shape = Function(), (rows, 1500)
    x, scale = f.given("x", shape, dtype, "value"), f.given("scale", shape[1:], dtype)
    settings = {"weight": scale, "eps": 1e-5, "offset": 0.0, "round_last": False}
    normed = f.node("bringup.rms_norm.default", {"n": (shape, dtype)}, x=x, **settings)
    return task_of(f, "n", *_rounded(f, normed, 128))


def activated_in_float8(rows: int, dtype: str, scale: bool = False) -> Task:
    """silu(gate) · up of arrays, rounded to float8: 128 columns at a time, or by one scale that is given."""
    f, shape = Function(), (rows, 400)
    gate, up = (f.given(name, shape, dtype, "value") for name in ("gate", "up"))
    act = f.node("bringup.silu.default", {"act": (shape, dtype)}, x=gate)
    out = f.node("aten.mul.Tensor", {"out": (shape, dtype)}, self=act, other=up)
    given = f.array("scale", np.float32(0.0123).reshape(()), "float32", "weight") if scale else None
    return task_of(f, *_rounded(f, out, shape[-1] if scale else 128, given))


def _rounded(f: Function, x: View, columns: int, scale: View | None = None) -> tuple[str, str]:
    """The names of codes and scales of rows of float8; each `columns` have one scale."""
    blocks = -(-x.shape[-1] // columns)
    results = {"codes": (x.shape, "uint8"), "scales": ((*x.shape[:-1], blocks), "float32")}
    f.node("bringup.to_fp8.default", results, x=x, columns=columns, scale=scale)
    return "codes", "scales"


def routing(experts: int = 64, groups: int = 0) -> Task:
    """Softmax, and the best experts of a token with their shares; of the two best groups, if there are groups."""
    f, rows, count = Function(), 7, 6
    scores = f.given("scores", (rows, experts), kind="value")
    shape = (rows, experts), "float32"
    best = shares = f.node("aten.softmax.int", {"p": shape}, self=scores, dim=-1, dtype=None)
    if groups:
        settings = {"groups": groups, "topk_groups": 2, "best": 2}
        best = f.node("bringup.keep_best_groups.default", {"k": shape}, scores_NE=shares, **settings)
    shapes = {"chosen": ((rows, count), "int64"), "weights": ((rows, count), "float32")}
    f.node("bringup.top_experts.default", shapes, scores_NE=shares, count=count, by_NE=best)
    return task_of(f, "chosen", "weights")


def look_up() -> Task:
    f, rows = Function(), 5
    tokens = f.array("step:tokens", np.array([3, 0, 40, 3, 7]), "int64", "step")
    table = f.given("table", (41, 200))
    taken = f.node("aten.index.Tensor", {"e": ((rows, 200), "float32")}, self=table, indices=(tokens,))
    wide = f.node("aten.mul.Tensor", {"m": ((rows, 200), "float32")}, self=taken, other=6.0)
    settings = {"dtype": DType("bfloat16"), "non_blocking": False, "copy": False, "memory_format": None}
    f.node("aten.to.dtype", {"out": ((rows, 200), "bfloat16")}, self=wide, **settings)
    return task_of(f, "out")


EXPERTS = {"tokens": 40, "choices": 2, "experts": 5, "rows": 12}


def sorting() -> Task:
    """The place of each token among those of its expert."""
    f, (tokens, choices, experts, rows) = Function(), EXPERTS.values()
    chosen = f.array("chosen", f.random.integers(0, experts, (tokens, choices)), "int64", "value")
    blocks = (tokens * choices + experts * (rows - 1)) // rows
    shapes = {"expert": ((blocks,), "int64"), "row": ((tokens, choices), "int64")}
    f.node("bringup.rows_of_experts.default", shapes, selected_NK=chosen, experts=experts, R=rows)
    return task_of(f, "expert", "row")


def copying() -> Task:
    """The rows of tokens, block by block of one expert."""
    from_sorting, (tokens, choices, experts, rows) = Function(), EXPERTS.values()
    chosen = from_sorting.random.integers(0, experts, (tokens, choices))
    first = sorting()
    found = Function()
    found.buffers, found.nodes = dict(first.graph.buffers), list(first.graph.groups[0].nodes)
    found.arrays = dict(first.arrays) | {"chosen": chosen}
    known = found.expected()
    g = Function()
    row = g.array("row", known["row"].astype(np.int64), "int64", "value")
    expert = g.array("expert", known["expert"].astype(np.int64), "int64", "value")
    x = g.given("x", (tokens, 37), kind="value")
    shape = (len(known["expert"]), rows, 37), "float32"
    settings = {"blocks_expert_B": expert, "blocks_row_NK": row, "blocks_rows": rows}
    g.node("bringup.to_blocks.default", {"out": shape}, x_Nm=x, **settings)
    return task_of(g, "out")
