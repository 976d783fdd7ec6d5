# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Results of whole operators without their references' fake tensors: the same, and not where they depend on a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves

from bringup.graphs.ops.lowering import OpLowering, using
from bringup.graphs.ops.result_sizes import Known, results_like

BLOCKS = 5
LEAST: Any = torch.sym_min


def counted(keys: Tensor, x: Tensor) -> Tensor:
    return (x.T @ x.new_ones(len(x), 4)) * keys.sum()


def several(keys: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return x.T, x[:, :1].long() + torch.arange(3)


def open_result(keys: Tensor, x: Tensor) -> Tensor:
    return keys.flatten()[:, None] * x[0]


def few_of_many(keys: Tensor, x: Tensor) -> Tensor:
    """As many columns as there are blocks, four at most: a size that is not fixed, and not proportional."""
    return x[0, :1] * torch.arange(LEAST(keys.shape[0], 4))


def refused(keys: Tensor, x: Tensor) -> Tensor:
    """torch's meta device has no such copy."""
    return x.to("cpu", copy=True)


def sizes(results: Any) -> list[Any]:
    return [(each.shape, each.stride(), each.dtype, each.device) for each in tree_leaves(results)]


@pytest.mark.parametrize(
    ("function", "on_fakes"),
    [(counted, False), (several, False), (open_result, True), (few_of_many, True), (refused, True)],
)
def test_results_are_those_of_the_function(function: Callable[[Tensor, Tensor], Any], on_fakes: bool) -> None:
    """torch.export, which computes with fake tensors, is the reference."""
    calls: list[bool] = []

    def watched(keys: Tensor, x: Tensor) -> Any:
        calls.append(x.device.type != "meta")
        return function(keys, x)

    class Called(torch.nn.Module):
        def forward(self, keys: Tensor, x: Tensor) -> Any:
            expected: Any = function(keys, x)
            assert sizes(results_like(watched, (keys, x))) == sizes(expected)
            return expected

    keys = torch.zeros(3, 64), {0: Dim("P", min=1, max=BLOCKS)}
    with torch.no_grad():
        export(Called(), (keys[0], torch.zeros(7, 3)), dynamic_shapes=(keys[1], None), strict=False)
    assert any(calls) is on_fakes


def test_results_are_computed_once_for_equal_arguments() -> None:
    calls: list[Any] = []

    def doubled(x: Tensor, setting: float) -> Tensor:
        calls.append(setting)
        return torch.cat([x, x]) if setting else x.T.clone()

    known: Known = {}
    x = torch.zeros(3, 4)
    arguments = [(x, 1), (x, 0), (x, True), (x, 1.0), (x.T, 1), (x.half(), 1), (x[:2], 1)]
    for first in (True, False):
        calls.clear()
        for given in arguments:
            assert sizes(results_like(doubled, given, known)) == sizes(doubled(*given))
        assert len(calls) == len(arguments) * (1 + first)
    with using(OpLowering(opaque={"rms_norm"})):
        results_like(doubled, (x, 1), known)
    assert len(calls) == len(arguments) + 1
