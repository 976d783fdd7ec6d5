"""Kernels of the CPU for recurrent ops, step after step, against the ops' references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bringup.compile.targets.schedule import OPAQUE
from bringup.graphs.core.step import FIELDS, Step
from bringup.graphs.ops.lowering import OpLowering, using
from bringup.graphs.ops.recurrent.causal_conv import causal_conv
from bringup.graphs.ops.recurrent.delta_rule import gated_delta_rule
from bringup.graphs.ops.recurrent.state_space import state_space
from tests.graphs.test_recurrent_ops import ROWS, steps
from tests.llvm.native import MACHINES
from tests.llvm.programs import assert_near, results, traced

NEAR = 2e-6  # relative to the result, or for small ones to 1
MACHINE = [pytest.param(name, marks=() if name == "host" else pytest.mark.slow) for name in MACHINES]


def check(op: Callable[..., Tensor], inputs: Callable[[int], list[Tensor]], state: Tensor, machine: str) -> None:
    """Each step by the kernel, from the state that the reference has before it; results of padding are finite."""
    for number, (step, taken) in enumerate(steps((2, 0))):
        values = inputs(step.tokens.shape[0])
        fields = [getattr(step, name) for name in FIELDS]

        def function(state: Tensor, *given: Tensor, like: Step = step) -> Any:
            own = Step(*given[-len(FIELDS) :], decode=like.decode, proposals=like.proposals)
            return op(*given[: -len(FIELDS)], state, own)

        with using(OpLowering(opaque=OPAQUE)):
            graph = traced(function, [*values, *fields], [state])
        count = sum(part.stop - part.start for part in taken.values())
        (found,), (after,) = results(graph, [*values, *fields], [state], machine=machine, threads=1 + number % 3)
        wanted = op(*values, state, step)
        assert_near(found[:count], wanted[:count], NEAR)
        assert torch.isfinite(torch.from_numpy(found[count:].astype("float32"))).all()
        rows = [2, 0][: len(taken)] if len(taken) == 2 else [[2, 0][index] for index in taken]
        assert_near(after[rows], state[rows], NEAR)
        untouched = [row for row in range(ROWS - 1) if row not in rows]
        assert_near(after[untouched], state[untouched], 0.0)


@pytest.mark.parametrize("machine", MACHINE)
@pytest.mark.parametrize(
    ("taps", "bias", "dtype"), [(3, False, "float32"), (4, True, "bfloat16"), (9, True, "float16")]
)
def test_convolution(taps: int, bias: bool, dtype: str, machine: str) -> None:
    """Of a part of the columns of a matrix; 299 channels are more than a thread computes together, and no multiple."""
    torch.manual_seed(taps)
    kind = getattr(torch, dtype)
    weight, shift = torch.randn(299, taps).to(kind), torch.randn(299).to(kind) if bias else None

    def op(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        *shift, state, step = rest
        return causal_conv(x[:, 5:304], weight, state, shift[0] if shift else None, step)

    def inputs(tokens: int) -> list[Tensor]:
        return [torch.randn(tokens, 311).to(kind), weight, *([] if shift is None else [shift])]

    check(op, inputs, torch.full((ROWS, taps - 1, 299), torch.nan, dtype=kind), machine)


@pytest.mark.parametrize("machine", MACHINE)
@pytest.mark.parametrize(
    ("groups", "repeats", "k", "v", "dtype"),
    [(2, 3, 8, 5, "float32"), (1, 2, 20, 128, "bfloat16"), (3, 1, 33, 75, "float16")],
)
def test_delta_rule(groups: int, repeats: int, k: int, v: int, dtype: str, machine: str) -> None:
    """Queries, keys and values are columns of one matrix, with the columns of each key head together."""
    torch.manual_seed(k)
    heads, each, kind = groups * repeats, 2 * k + repeats * v, getattr(torch, dtype)

    def op(qkv: Tensor, decay: Tensor, beta: Tensor, state: Tensor, step: Step) -> Tensor:
        q, keys, values = qkv.unflatten(1, (groups, each)).split([k, k, repeats * v], 2)
        return gated_delta_rule(q, keys, values.unflatten(2, (repeats, v)), decay, beta, state, step)

    def inputs(tokens: int) -> list[Tensor]:
        gates = -3 * torch.rand(tokens, heads), torch.rand(tokens, heads).to(kind)
        return [torch.randn(tokens, groups * each).to(kind), *gates]

    check(op, inputs, torch.full((ROWS, heads, k, v), torch.nan), machine)


@pytest.mark.parametrize("machine", MACHINE)
@pytest.mark.parametrize(
    ("groups", "repeats", "k", "v", "dtype", "dtype_of_v"),
    [(2, 3, 8, 5, "float32", "float32"), (1, 3, 20, 128, "bfloat16", "float32"), (3, 1, 33, 75, "float16", "float16")],
)
def test_state_space(groups: int, repeats: int, k: int, v: int, dtype: str, dtype_of_v: str, machine: str) -> None:
    """Queries and keys are columns of one matrix; values, which are the product with a gate, may have another dtype."""
    torch.manual_seed(k)
    heads = groups * repeats

    def op(qk: Tensor, values: Tensor, decay: Tensor, state: Tensor, step: Step) -> Tensor:
        q, keys = qk[:, 3:].unflatten(1, (2, groups, k)).unbind(1)
        return state_space(q, keys, values.unflatten(1, (groups, repeats, v)), decay, state, step)

    def inputs(tokens: int) -> list[Tensor]:
        qk, values = torch.randn(tokens, 3 + 2 * groups * k), torch.randn(tokens, heads * v) / 8  # results of about 1
        kinds = getattr(torch, dtype), getattr(torch, dtype_of_v)
        return [qk.to(kinds[0]), values.to(kinds[1]), -0.3 * torch.rand(tokens, heads)]

    check(op, inputs, torch.full((ROWS, heads, k, v), torch.nan), machine)
