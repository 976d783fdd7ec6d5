"""Products with the factors of LoRAs, for sequences and for blocks of one expert."""

import numpy as np

from bringup.compile.schedule.graph.op_graph import View
from bringup.graphs.core.step import FIELDS
from tests.kernels.graphs import Function
from tests.kernels.tasks.task import Task, task_of

SLOTS, RANK = 3, 5
CHOSEN = np.array([2, -1, 0])  # the slot of each sequence
STARTS = np.array([0, 3, 4, 8])  # where each sequence's rows begin
ROWS = 10  # and two of padding


def chosen(f: Function, *, decode: bool) -> dict[str, View | bool]:
    """The slots of three sequences, and the fields of their step."""
    fields = {"starts": STARTS, "totals": np.full(3, 9), "tokens": np.zeros(3 if decode else ROWS)}
    views = {
        f"step_{name}": f.array(f"step:{name}", fields.get(name, np.zeros(3)).astype(np.int64), "int64", "step")
        for name in FIELDS
    }
    return {
        "slots_B": f.array("slots", CHOSEN, "int64", "value"),
        **views,
        "step_decode": decode,
        "step_contiguous": False,
        "step_proposals": False,
    }


def shrunk(dtype: str, *, decode: bool) -> Task:
    """Rows that lie further apart than they are long, by the A of their LoRAs."""
    f, rows, channels = Function(), 3 if decode else ROWS, 1400
    f.given("x", (rows, 2 * channels), dtype, "value")
    a = f.given("a", (SLOTS, RANK, channels), dtype, "state")
    x = View("x", (rows, channels), (2 * channels, 1), channels)
    shape = {"h": ((rows, RANK), dtype)}
    f.node("bringup.lora_shrink.default", shape, x_Ni=x, a_Sri=a, **chosen(f, decode=decode))
    return task_of(f, "h")


def expanded(dtype: str) -> Task:
    """The B of each row's LoRA, and the sum with what the base gave."""
    f, columns = Function(), 37
    h, y = f.given("h", (ROWS, RANK), dtype, "value"), f.given("y", (ROWS, columns), dtype, "value")
    b = f.given("b", (SLOTS, RANK, columns), dtype, "state")
    shape = (ROWS, columns), dtype
    p = f.node("bringup.lora_expand.default", {"p": shape}, h_Nr=h, b_Sro=b, **chosen(f, decode=False))
    f.node("aten.add.Tensor", {"out": shape}, self=y, other=p, alpha=1)
    return task_of(f, "out")


def expert_shrunk() -> Task:
    """Blocks of four rows of one expert each."""
    f, blocks, rows, experts, channels = Function(), 4, 4, 3, 1400
    x = f.given("x", (blocks, rows, channels), kind="value")
    a = f.given("a", (SLOTS, experts, RANK, channels), kind="state")
    expert = f.array("expert", np.array([0, 2, 2, 1]), "int64", "value")
    slot = f.array("slot", np.arange(blocks * rows).reshape(blocks, rows) % (SLOTS + 1) - 1, "int64", "value")
    shape = {"h": ((blocks, rows, RANK), "float32")}
    f.node("bringup.expert_lora_shrink.default", shape, x_BRi=x, a_Seri=a, expert_B=expert, slot_BR=slot)
    return task_of(f, "h")


def looked_up() -> Task:
    """Columns of the A of an embedding's LoRAs."""
    f, vocab = Function(), 70
    tokens = f.array("tokens_N", f.random.integers(0, vocab, ROWS), "int64", "value")
    a = f.given("a", (SLOTS, RANK, vocab), kind="state")
    shape = {"h": ((ROWS, RANK), "float32")}
    f.node("bringup.lora_lookup.default", shape, rows_N=tokens, a_Srv=a, **chosen(f, decode=False))
    return task_of(f, "h")


def slots_of_blocks() -> Task:
    """The slot of each row of blocks of one expert."""
    f, tokens, choices, rows, blocks = Function(), 700, 2, 4, 351
    slot = f.array("slot_N", f.random.integers(-1, SLOTS, tokens), "int64", "value")
    places = f.random.permutation(blocks * rows)[: tokens * choices].reshape(tokens, choices)
    row, expert = f.array("row", places, "int64", "value"), f.array("expert", np.arange(blocks), "int64", "value")
    shape = {"slots": ((blocks, rows), "int64")}
    f.node("bringup.slots_to_blocks.default", shape, slot_N=slot, row_NK=row, expert_B=expert, rows=rows)
    return task_of(f, "slots")
