"""Products with LoRAs on the CPU against numpy in float64. Slots that no sequence has are NaN."""

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
    graph = node_graph(op, arrays, {"step_decode": stage == "decode", "step_contiguous": False})
    for threads in (1, 3, 64):
        assert relative(run(graph, arrays, machine, threads).read("out"), wanted) <= TOLERANCES[dtype]
