"""No recurrent kernel spills, in the sizes of published models."""

from __future__ import annotations

import pytest

from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import Kernel
from bringup.compile.kernels.resources import resources
from bringup.compile.kernels.select.registry import calls_of
from tests.kernels.recurrent.functions import Step, convolution, delta_rule, state_space

STEPS: dict[str, Step] = {"decode": (((4, 1),), 1, 1), "prefill": (((4, 20),), 20, 1), "chunks": (((4, 70),), 70, 1)}
DTYPES = ("float32", "bfloat16")  # float16 has kernels of the same sizes


def kernels(capability: str) -> dict[str, Kernel]:
    """By their name, step, dtype and channels; those of the state space also by the dtype of its values."""
    found: dict[str, Kernel] = {}
    for name, step in STEPS.items():
        for dtype in DTYPES:
            decode = name == "decode"
            functions = {
                f"delta, {size}": delta_rule(step, (1, 2), (size, size), dtype, decode=decode)
                for size in (64, 128, 256)
            }
            functions |= {
                f"state space, {values}, {size}": state_space(step, (1, 32), (size, 64), (dtype, values), decode=decode)
                for size in (64, 128, 256)
                for values in ({"float32", dtype} if size == 128 else {"float32"})
            }
            functions["convolution, 1024"] = convolution(step, 1024, 4, dtype, decode=decode, bias=False)
            for what, f in functions.items():
                graph = f.graph("out")
                for call in calls_of(graph, graph.groups[0], capability) or ():
                    found[f"{call.kernel.stem}, {name}, {dtype}, {what}"] = call.kernel
    return found


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["sm_80", "sm_90", "sm_120"])
def test_none_spills(capability: str) -> None:
    found = kernels(capability)
    each = (
        2 * 3 + 3 + 4
    )  # the delta rule, and the state space, whose values in bfloat16 have two dtypes with 128 channels
    in_chunks = 2 + 4  # more: prompts in bfloat16 have two kernels, except those of the delta rule with 256 channels
    assert len(found) == 3 * each + 2 * (1 + 2 + 2) + in_chunks
    compiled = compile_kernels(found.values(), capability, default_store())
    assert {name: used for name, each in found.items() if (used := resources(compiled[each]).stack)} == {}
