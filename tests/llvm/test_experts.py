"""Mixtures of experts on the CPU against numpy in float64, token by token. Experts that nobody chose are NaN."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.schedule.graph.op_graph import View
from tests.kernels.graphs import Function, far
from tests.llvm.native import run, separate

TOLERANCES = {"float32": 1e-6, "bfloat16": 8e-3, "float16": 1e-3}
# Tokens, experts of each, experts: a row for each block, few rows, many rows, and tokens that all go the same way.
SIZES = {"rows": (3, 2, 7), "few": (7, 2, 4), "many": (29, 3, 6), "same": (5, 1, 3)}


@pytest.mark.parametrize("machine", ["host", "generic"])
@pytest.mark.parametrize(
    ("sizes", "dtype"), [*((name, "float32") for name in SIZES), ("rows", "bfloat16"), ("many", "float16")]
)
def test_every_token_gets_its_experts(sizes: str, dtype: str, machine: str) -> None:
    """Sorted into blocks, multiplied, weighted and summed; x and what a product gives are columns of wider rows."""
    tokens, each, experts = SIZES[sizes]
    random, m, o = np.random.default_rng(3), 21, 37
    used = experts - 1 if sizes != "same" else 1
    chosen = np.stack([random.permutation(used)[:each] for _ in range(tokens)]).astype(np.int64)
    height = max(1, tokens * each // experts)
    blocks = tokens * each if height == 1 else (tokens * each + experts * (height - 1)) // height
    function = Function()
    function.given("x", (tokens, m + 4), dtype, "temporary")
    weights = function.given("shares", (tokens, each))
    weight, bias = function.given("w", (experts, o, m), dtype), function.given("bias", (experts, o), dtype)
    for name in ("w", "bias"):
        function.arrays[name][[n for n in range(experts) if n not in chosen]] = np.nan
    own = function.array("chosen", chosen, "int64", "temporary")
    expert = function.node(
        "bringup.rows_of_experts.default", {"expert": ((blocks,), "int64"), "row": ((tokens, each), "int64")},
        selected_NK=own, experts=experts, R=height,
    )  # fmt: skip
    row = View("row", (tokens, each), (each, 1))
    of_blocks = {"blocks_expert_B": expert, "blocks_row_NK": row, "blocks_rows": height}
    x = View("x", (tokens, m), (m + 4, 1), 3)
    rows = function.node("bringup.to_blocks.default", {"b": ((blocks, height, m), dtype)}, x_Nm=x, **of_blocks)
    y = function.node(
        "bringup.expert_linear.default", {"y": ((blocks, height, o), dtype)},
        x_BRi=rows, weight_eoi=weight, bias_eo=bias, expert_B=expert,
    )  # fmt: skip
    function.node("bringup.from_blocks.default", {"z": ((tokens, o), dtype)}, y_BRm=y, weights_NK=weights, **of_blocks)
    wide = {name: np.asarray(array, np.float64) for name, array in function.arrays.items()}
    products = np.einsum("nkom,nm->nko", wide["w"][chosen], wide["x"][:, 3:-1]) + wide["bias"][chosen]
    wanted = np.einsum("nko,nk->no", products, wide["shares"])
    graph = separate(function.graph("z"))
    for threads in (1, 3, 64):
        found = run(graph, function.started(), machine, threads)
        assert far(found.read("z"), wanted) <= TOLERANCES[dtype]
        own = found.read("expert")[found.read("row") // height]
        np.testing.assert_array_equal(own, chosen)
        assert len(set(found.read("row").ravel())) == chosen.size


@pytest.mark.parametrize("by", [False, True])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_best_experts_are_chosen(count: int, by: bool) -> None:
    """Of equal scores the first; also where most of them are -infinity, as of groups that are left out."""
    random = np.random.default_rng(2)
    scores = random.standard_normal((5, 8)).astype(np.float32)
    order = np.round(random.standard_normal((5, 8)), 0).astype(np.float32) if by else scores
    order[2, 1:] = -np.inf
    function = Function()
    given = {"scores_NE": function.array("s", scores, "float32", "temporary"), "count": count}
    given["by_NE"] = function.array("o", order, "float32", "temporary") if by else None
    function.node("bringup.top_experts.default", {"c": ((5, count), "int64"), "w": ((5, count), "float32")}, **given)
    found = run(function.graph("c", "w"), function.started(), threads=3)
    wanted = np.argsort(-order, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(found.read("c"), wanted)
    np.testing.assert_array_equal(found.read("w"), np.take_along_axis(scores, wanted, 1))


def test_scores_that_are_no_numbers_choose_experts_that_there_are() -> None:
    function = Function()
    scores = function.array("s", np.full((2, 4), np.nan, np.float32), "float32", "temporary")
    shapes = {"c": ((2, 3), "int64"), "w": ((2, 3), "float32")}
    function.node("bringup.top_experts.default", shapes, scores_NE=scores, count=3, by_NE=None)
    found = run(function.graph("c", "w"), function.started())
    assert set(found.read("c").ravel()) <= {0, 1, 2, 3}
    assert np.isnan(found.read("w")).all()


@pytest.mark.parametrize(("groups", "remaining", "best"), [(4, 2, 2), (3, 1, 1), (2, 2, 4)])
def test_only_the_best_groups_stay(groups: int, remaining: int, best: int) -> None:
    scores = np.random.default_rng(1).standard_normal((6, 12)).astype(np.float32)
    function = Function()
    given = function.array("s", scores, "float32", "temporary")
    function.node("bringup.keep_best_groups.default", {"y": ((6, 12), "float32")}, scores_NE=given, groups=groups,
                  topk_groups=remaining, best=best)  # fmt: skip
    found = run(function.graph("y"), function.started(), threads=4).read("y").reshape(6, groups, -1)
    grouped = scores.reshape(6, groups, -1).astype(np.float64)
    totals = np.sort(grouped, axis=2)[:, :, -best:].sum(2)
    stay = np.argsort(-totals, axis=1)[:, :remaining]
    wanted = np.full_like(grouped, -np.inf)
    for row, numbers in enumerate(stay):
        wanted[row, numbers] = grouped[row, numbers]
    np.testing.assert_array_equal(found, wanted)
