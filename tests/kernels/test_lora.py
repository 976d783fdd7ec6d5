"""The kernels of LoRAs on the emulator, against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.schedule.costs import cost_of
from bringup.compile.schedule.graph.op_graph import View
from bringup.graphs.core.step import FIELDS
from tests.kernels.graphs import Function, far

SLOTS, RANK, IN, OUT = 3, 5, 70, 37
CHOSEN = np.array([2, -1, 0])
STARTS = np.array([0, 3, 4, 8])  # and two rows of padding
PREFILL = 10


def stepped(f: Function, *, decode: bool) -> dict[str, View | bool]:
    """The fields of a step of three sequences."""
    fields = {"starts": STARTS, "totals": np.full(3, 9), "tokens": np.zeros(3 if decode else PREFILL)}
    views = {
        f"step_{name}": f.array(f"step:{name}", fields.get(name, np.zeros(3)).astype(np.int64), "int64", "step")
        for name in FIELDS
    }
    return {**views, "step_decode": decode, "step_contiguous": False, "step_proposals": False}


def near(f: Function, *names: str, within: float = 2e-6) -> None:
    machine, expected = f.emulated(f.graph(*names), "sm_90"), f.expected()
    for name in names:
        assert np.abs(expected[name]).max() > 0
        assert far(machine.read(name), expected[name]) <= within, name


@pytest.mark.parametrize(("dtype", "within"), [("float32", 2e-6), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("decode", [True, False])
def test_each_row_has_the_factors_of_its_sequence(decode: bool, dtype: str, within: float) -> None:
    """Rows of a matrix whose rows lie further apart; the sum after the product is of the same launch."""
    rows = 3 if decode else PREFILL
    shrink, expand = Function(), Function(1)
    for f in (shrink, expand):
        f.array("slots", CHOSEN, "int64", "value")
    x = shrink.given("x", (rows, 2 * IN), dtype, "value")
    a = shrink.given("a", (SLOTS, RANK, IN), dtype, "state")
    shrink.node(
        "bringup.lora_shrink.default", {"h": ((rows, RANK), dtype)}, x_Ni=View("x", (rows, IN), (2 * IN, 1), IN),
        a_Sri=a, slots_B=View("slots", (3,), (1,)), **stepped(shrink, decode=decode),
    )  # fmt: skip
    assert x.shape == (rows, 2 * IN)
    near(shrink, "h", within=within)
    h, y = expand.given("h", (rows, RANK), dtype, "value"), expand.given("y", (rows, OUT), dtype, "value")
    b = expand.given("b", (SLOTS, RANK, OUT), dtype, "state")
    product = expand.node(
        "bringup.lora_expand.default", {"p": ((rows, OUT), dtype)}, h_Nr=h, b_Sro=b,
        slots_B=View("slots", (3,), (1,)), **stepped(expand, decode=decode),
    )  # fmt: skip
    expand.node("aten.add.Tensor", {"out": ((rows, OUT), dtype)}, self=y, other=product, alpha=1)
    near(expand, "out", within=within)


@pytest.mark.parametrize("each", [1, 4])
def test_rows_of_experts_have_the_factors_of_their_own(each: int) -> None:
    """Blocks of one row, and of four, some of which stay empty."""
    f, blocks, experts = Function(), 4, 3
    x = f.given("x", (blocks, each, IN), kind="value")
    a, b = (f.given(name, (SLOTS, experts, RANK, size), kind="state") for name, size in (("a", IN), ("b", OUT)))
    a_bytes = 4 * SLOTS * experts * RANK * IN
    expert = f.array("expert", np.array([0, 2, 2, 1]), "int64", "value")
    slot = f.array("slot", np.arange(blocks * each).reshape(blocks, each) % (SLOTS + 1) - 1, "int64", "value")
    shared = {"expert_B": expert, "slot_BR": slot}
    shape = {"h": ((blocks, each, RANK), "float32")}
    h = f.node("bringup.expert_lora_shrink.default", shape, x_BRi=x, a_Seri=a, **shared)
    shrunk = f.graph("h")
    f.array("step:rows", np.zeros(2, np.int64), "int64", "step")
    read = cost_of(shrunk, shrunk.groups[0], 1).cache
    assert read == a_bytes * 2 // SLOTS, "of two sequences' slots, and of all experts, for there are as many blocks"
    machine, expected = f.emulated(shrunk, "sm_90"), f.expected()
    assert far(machine.read("h"), expected["h"]) < 2e-6
    g = Function()
    g.buffers, g.arrays = dict(f.buffers), dict(f.arrays) | {"h": expected["h"].astype(np.float32)}
    g.node("bringup.expert_lora_expand.default", {"y": ((blocks, each, OUT), "float32")}, h_BRr=h, b_Sero=b, **shared)
    near(g, "y")


def test_the_slots_of_blocks_and_columns_of_embeddings() -> None:
    f, tokens, choices, rows = Function(), 6, 2, 4
    slot = f.array("slot_N", np.array([1, -1, 0, 2, 2, -1]), "int64", "value")
    places = f.random.permutation(5 * rows)[: tokens * choices].reshape(tokens, choices)
    row, expert = f.array("row", places, "int64", "value"), f.array("expert", np.arange(5), "int64", "value")
    shape = {"blocks": ((5, rows), "int64")}
    f.node("bringup.slots_to_blocks.default", shape, slot_N=slot, row_NK=row, expert_B=expert, rows=rows)
    near(f, "blocks", within=0)
    for decode in (True, False):
        g, count = Function(), 3 if decode else PREFILL
        tokens_N = g.array("tokens_N", g.random.integers(0, IN, count), "int64", "value")
        chosen, a = g.array("slots", CHOSEN, "int64", "value"), g.given("a", (SLOTS, RANK, IN), kind="state")
        shape = {"h": ((count, RANK), "float32")}
        step = stepped(g, decode=decode)
        g.node("bringup.lora_lookup.default", shape, rows_N=tokens_N, a_Srv=a, slots_B=chosen, **step)
        machine, expected = g.emulated(g.graph("h"), "sm_90"), g.expected()
        used = count if decode else STARTS[-1]  # padding is of no sequence
        assert far(machine.read("h")[:used], expected["h"][:used]) == 0
