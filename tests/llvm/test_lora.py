"""Operations with LoRAs on the CPU against numpy in float64. Slots that no sequence has are NaN."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.emulated import relative
from tests.kernels.nodes import node_graph
from tests.llvm.native import run
from tests.llvm.test_indexer import step_of

SLOTS, INNER, RANK, OUTER = 4, 37, 5, 41
# New tokens of each sequence, and padding after the last; the slot of each sequence, below 0 for none.
CASES = {"decode": ([1, 1, 1], 0, [2, -1, 0]), "prefill": ([4, 0, 7, 2], 3, [1, 3, -1, 0])}
TOLERANCES = {"float32": 1e-6, "float16": 1e-3}


@pytest.mark.parametrize("machine", ["host", "generic"])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("stage", CASES)
@pytest.mark.parametrize("op", ["lora_shrink", "lora_expand"])
def test_each_token_has_the_lora_of_its_sequence(op: str, stage: str, dtype: str, machine: str) -> None:
    new, padding, slots = CASES[stage]
    random, shrinks = np.random.default_rng(4), op == "lora_shrink"
    step = step_of([count + 3 for count in new], new, padding, 1)
    tokens, (inner, outer) = sum(new) + padding, (INNER, RANK) if shrinks else (RANK, OUTER)
    x = random.standard_normal((tokens, inner)).astype(dtype)
    weight = random.standard_normal((SLOTS, RANK, INNER if shrinks else OUTER)).astype(dtype)
    weight[[n for n in range(SLOTS) if n not in slots]] = np.nan
    names = ("x_Ni", "a_Sri") if shrinks else ("h_Nr", "b_Sro")
    arrays = {names[0]: x, names[1]: weight, "slots_B": np.array(slots), **step}
    arrays["out"] = np.full((tokens, outer), np.nan, dtype)
    wanted = np.zeros((tokens, outer))
    for token, slot in enumerate(np.repeat(slots, new)):
        if slot >= 0:
            own = weight[slot].astype(np.float64)
            wanted[token] = x[token].astype(np.float64) @ (own.T if shrinks else own)
    graph = node_graph(
        op, arrays, {"step_decode": stage == "decode", "step_contiguous": False, "step_proposals": False}
    )
    for threads in (1, 3, 64):
        assert relative(run(graph, arrays, machine, threads).read("out"), wanted) <= TOLERANCES[dtype]


@pytest.mark.parametrize("stage", CASES)
def test_look_ups_are_products_with_rows_of_a_unit_matrix(stage: str) -> None:
    new, padding, slots = CASES[stage]
    random, step = np.random.default_rng(5), step_of([count + 3 for count in new], new, padding, 1)
    tokens = sum(new) + padding
    weight = random.standard_normal((SLOTS, RANK, INNER)).astype("float32")
    weight[[n for n in range(SLOTS) if n not in slots]] = np.nan
    numbers = random.integers(0, INNER, tokens)
    arrays = {"rows_N": numbers, "a_Srv": weight, "slots_B": np.array(slots), **step}
    arrays["out"] = np.full((tokens, RANK), np.nan, "float32")
    wanted = np.zeros((tokens, RANK))
    for token, slot in enumerate(np.repeat(slots, new)):
        if slot >= 0:
            wanted[token] = weight[slot, :, numbers[token]]
    graph = node_graph(
        "lora_lookup", arrays, {"step_decode": stage == "decode", "step_contiguous": False, "step_proposals": False}
    )
    for threads in (1, 3, 64):
        np.testing.assert_array_equal(run(graph, arrays, "host", threads).read("out"), wanted)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("op", ["expert_lora_shrink", "expert_lora_expand"])
def test_each_row_of_a_block_has_its_lora_for_the_blocks_expert(op: str, rows: int, dtype: str) -> None:
    """Factors that no row has are NaN."""
    random, shrinks, experts = np.random.default_rng(6), op == "expert_lora_shrink", np.array([2, 0, 2, 1])
    inner, outer = (INNER, RANK) if shrinks else (RANK, OUTER)
    slots = random.integers(-1, SLOTS, (len(experts), rows))
    x = random.standard_normal((len(experts), rows, inner)).astype(dtype)
    weight = random.standard_normal((SLOTS, 3, RANK, INNER if shrinks else OUTER)).astype(dtype)
    used = {(slot, expert) for own, expert in zip(slots, experts, strict=True) for slot in own}
    for slot, expert in np.ndindex(SLOTS, 3):
        if (slot, expert) not in used:
            weight[slot, expert] = np.nan
    wanted = np.zeros((len(experts), rows, outer))
    for block, row in np.ndindex(slots.shape):
        if (slot := slots[block, row]) >= 0:
            own = weight[slot, experts[block]].astype(np.float64)
            wanted[block, row] = x[block, row].astype(np.float64) @ (own.T if shrinks else own)
    names = ("x_BRi", "a_Seri") if shrinks else ("h_BRr", "b_Sero")
    arrays = {names[0]: x, names[1]: weight, "expert_B": experts, "slot_BR": slots}
    arrays["out"] = np.full(wanted.shape, np.nan, dtype)
    for threads in (1, 3, 64):
        assert (
            relative(run(node_graph(op, arrays, {}), arrays, "host", threads).read("out"), wanted) <= TOLERANCES[dtype]
        )


def test_the_slot_of_each_row_of_blocks() -> None:
    random = np.random.default_rng(7)
    slots, places = np.array([2, -1, 0, 3, 1]), random.permutation(24)[:10].reshape(5, 2)
    arrays = {"slot_N": slots, "row_NK": places, "expert_B": np.zeros(6, np.int64)}
    arrays["out"] = np.full((6, 4), 99)
    wanted = np.full(24, -1)
    wanted[places] = slots[:, None]
    for threads in (1, 3, 64):
        found = run(node_graph("slots_to_blocks", arrays, {"rows": 4}), arrays, "host", threads).read("out")
        np.testing.assert_array_equal(found, wanted.reshape(6, 4))
