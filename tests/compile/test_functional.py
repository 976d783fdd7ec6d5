"""A stage without updates in place is what `run_decompositions` gives. torch's own rules stay as they are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram, export
from torch_mlir.extras.fx_decomp_util import get_decomposition_table

from bringup.compile.program.function_of import function_of
from bringup.compile.program.functional import Decompositions, functional
from bringup.diagnostics import BringupError
from bringup.graphs.core.step import FIELDS

# torch 2.13 copies its own deprecated LeafSpec in run_decompositions.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


class Stage(nn.Module):
    """A state that changes in part, a temporary that changes in place, a constant, and composite operations."""

    def forward(self, weight: Tensor, cache: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        y = nn.functional.linear(x, weight)
        y += torch.tensor([0.5, 1.5])
        cache[1:3].copy_(y)
        return nn.functional.gelu(nn.functional.layer_norm(cache, (2,))), y


def exported() -> ExportedProgram:
    return export(Stage(), (torch.ones(2, 3), torch.zeros(4, 2), torch.ones(2, 3)), strict=False)


def calls(program: object) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_the_same_operations() -> None:
    ours = functional(exported(), Decompositions(get_decomposition_table()))
    theirs = exported().run_decompositions(dict(get_decomposition_table()))
    assert calls(ours) == calls(theirs)
    assert ours.updated == (1,)
    assert [spec.kind for spec in ours.graph_signature.input_specs] == [
        s.kind for s in exported().graph_signature.input_specs
    ]


def test_what_is_functional_already() -> None:
    table = Decompositions(get_decomposition_table())
    assert calls(functional(exported().run_decompositions({}), table)) == calls(functional(exported(), table))
    assert functional(exported().run_decompositions({}), table).updated == (1,)


def test_rules_of_torch_are_as_before() -> None:
    before = exported().run_decompositions()
    ops = [torch.ops.aten.linear.default, torch.ops.aten.layer_norm.default, torch.ops.aten.matmul.default]
    kernels = [dict(op.py_kernels) for op in ops]
    functional(exported(), Decompositions({}))
    assert [dict(op.py_kernels) for op in ops] == kernels
    assert calls(exported().run_decompositions()) == calls(before)


class Blocks(nn.Module):
    """A state that is read after a block in which it changes."""

    def __init__(self, block: AbstractContextManager[object]) -> None:
        super().__init__()
        self.block = (block,)

    def forward(self, weight: Tensor, cache: Tensor, x: Tensor, *step: Tensor) -> tuple[Tensor, ...]:
        with self.block[0]:
            rows = x @ weight
            cache[1:3].copy_(rows)
            y = cache.cumsum(0) + step[0].sum()
        return cache * 2, y[-1:] - x.sum(0)


class Lists(nn.Module):
    """An operation that changes all tensors of a list: two views of a state."""

    def forward(self, weight: Tensor, cache: Tensor, x: Tensor, *step: Tensor) -> tuple[Tensor, ...]:
        torch._foreach_add_([cache[0:2], cache[2:4]], [x @ weight, x])
        return cache * 2, cache[-1:] - x.sum(0) + step[0].sum()


CHANGES = {
    "plain": lambda: Blocks(nullcontext()),
    "autocast": lambda: Blocks(torch.autocast("cpu", enabled=False)),
    "bfloat16": lambda: Blocks(torch.autocast("cpu", dtype=torch.bfloat16)),
    "enable_grad": lambda: Blocks(torch.enable_grad()),
    "list": Lists,
}


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(2, 2),
        torch.randn(4, 2),
        torch.randn(2, 2),
        *(torch.ones(1, dtype=torch.int64) for _ in FIELDS),
    ]


@pytest.mark.parametrize("change", CHANGES)
def test_results_and_updated_states_are_those_of_torch(change: str) -> None:
    with torch.no_grad():
        traced = export(CHANGES[change](), tuple(inputs()), strict=False)
    function = function_of("stage", ["weight"], ["cache"], traced)
    pure = functional(traced, Decompositions(get_decomposition_table()))
    theirs = inputs()
    with torch.no_grad():
        expected = CHANGES[change]()(*theirs)
    given = inputs()
    updated, *results = fx.Interpreter(fx.GraphModule(nn.Module(), pure.graph)).run(*given)
    assert function.updates == ("cache",)
    assert pure.updated == (1,)
    torch.testing.assert_close(updated, theirs[1])
    torch.testing.assert_close(results, list(expected))
    torch.testing.assert_close(given, inputs())  # unchanged


class Inside(nn.Module):
    """Changes a value, which is no state, in a graph inside the graph."""

    def forward(self, weight: Tensor, cache: Tensor, x: Tensor, *step: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            x += weight
        return (cache + x.sum(0) + step[0],)


class Turned(nn.Module):
    def forward(self, weight: Tensor, cache: Tensor, x: Tensor, *step: Tensor) -> tuple[Tensor, ...]:
        return (weight.t_() + x + step[0] + cache.sum(),)


@pytest.mark.parametrize(
    ("stage", "words"), [(Inside, "an input in place: `x`"), (Turned, "shape or strides.*`weight`")]
)
def test_only_states_change(stage: type[nn.Module], words: str) -> None:
    with torch.no_grad():
        traced = export(stage(), tuple(inputs()), strict=False)
    with pytest.raises(BringupError, match=words) as raised:
        function_of("stage", ["weight"], ["cache"], traced)
    assert raised.value.findings[0].code == "BU304"
