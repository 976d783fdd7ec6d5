"""Whether a slice cuts a quantisation block: told from nests alone, and counted here value by value."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bringup.adapters.algebra.expr import Expr, S
from bringup.adapters.algebra.values import dequant
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.shard import slice_plan
from bringup.adapters.apply.shard_alignment import first_cut
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Plan, make_plan
from bringup.compile.check.ranks import divide
from bringup.graphs.core.axes import sized
from bringup.graphs.core.signature import Declared, Signature
from bringup.spec import Site

HERE = Site("tests", 1)


def plan_of(axes: str, sizes: dict[str, int], stored: tuple[int, ...], block: tuple[int, ...], expr) -> tuple:
    """A plan of one parameter, dequantised: each value of its checkpoint is the number of the block that it is in."""
    grid = tuple(-(-size // n) for size, n in zip(stored, block, strict=True))
    arrays = {"w": np.ones(stored, np.int8), "s": np.arange(np.prod(grid), dtype=np.float32).reshape(grid)}
    adapter = Adapter("test")
    adapter["p"] = expr
    checkpoint = dict_checkpoint(arrays, {})
    declared = Declared("p", sized(axes, sizes), "float32", None, HERE)
    plan = make_plan(Signature({"p": declared}), adapter, checkpoint.headers)
    assert not plan.problems
    return plan, checkpoint


def blocks_cut(plan: Plan, part: Plan, checkpoint) -> bool:
    """Whether the part has some, but not all, of what the whole has of a block."""
    whole, some = (Counter(materialise(each, checkpoint)["p"].ravel().tolist()) for each in (plan, part))
    return any(some[number] != whole[number] for number in some)


W, F = {"w": 64, "f": 96}, {"f": 96}
CASES: dict[str, tuple[str, dict[str, int], tuple[int, ...], tuple[int, ...], Expr]] = {
    "columns": ("w f", W, (64, 96), (1, 32), dequant(S("w", "w f"), S("s", "w b", b=3), (1, 32))),
    "turned": ("f w", W, (64, 96), (1, 32), dequant(S("w", "w f"), S("s", "w b", b=3), (1, 32)).mv("w f -> f w")),
    "rows": ("w f", W, (64, 96), (16, 32), dequant(S("w", "w f"), S("s", "r b", r=4, b=3), (16, 32))),
    "short": ("w f", W | {"f": 88}, (64, 88), (1, 16), dequant(S("w", "w f"), S("s", "w b", b=6), (1, 16))),
    "heads": (
        "(h d) f", {"h": 12, "d": 8, "f": 4}, (96, 4), (32, 2),
        dequant(S("w", "(h d) f"), S("s", "r b", r=3, b=2), (32, 2)),
    ),
    "half": (
        "w f", {"w": 32, "f": 96}, (64, 96), (1, 32),
        dequant(S("w", "(w two) f", two=2), S("s", "x b", x=64, b=3), (1, 32))
        .mv("(w two) f -> two w f", two=2).at("two", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_reported_as_counted(name):
    axes, sizes, *_ = CASES[name]
    plan, checkpoint = plan_of(*CASES[name])
    seen: set[bool] = set()
    for axis, size in sizes.items():
        for ranks in (n for n in range(2, size + 1) if size % n == 0 and axis in axes):
            part = slice_plan(plan, (axis,), 0, ranks)
            cut = first_cut(plan, part)
            assert (cut is not None) == blocks_cut(plan, part, checkpoint), (axis, ranks)
            seen.add(cut is not None)
            if cut:  # the multiple that it names is the least at which nothing is cut
                grain = cut.grain(size // ranks)
                fits = [
                    n
                    for n in range(1, size)
                    if size % n == 0 and not first_cut(plan, slice_plan(plan, (axis,), 0, size // n))
                ]
                assert all(n % grain == 0 for n in fits), (axis, ranks, grain)
                assert size % grain or not fits or min(fits) == grain, (axis, ranks, grain, fits)
    assert seen == {True, False}


def test_a_rank_that_shares_a_head_may_cut_a_block():
    """4 key heads of 16 channels among 8 ranks: one each, of rows of 64 in blocks of 32."""
    expr = dequant(S("w", "f (g d)"), S("s", "f b", b=2), (1, 32))
    plan, _ = plan_of("f (g d)", {"f": 8, "g": 4, "d": 16}, (8, 64), (1, 32), expr)
    (refusal,) = divide(plan, 8).refusals
    assert refusal.code == "BU136"
    assert "splitting `g` (4) over 8 ranks gives 1 each, which cuts quantisation blocks of 32" in refusal.message
    assert divide(plan, 2).refusals == []
