"""Ops: wrong shapes are told by name; references equal brute force."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from bringup.diagnostics import BringupError
from bringup.graphs.ops.activation import ACTIVATIONS
from bringup.graphs.ops.linear import linear
from bringup.graphs.ops.norm import layer_norm, rms_norm
from bringup.graphs.ops.op import op
from bringup.graphs.ops.rotary import rope


def test_wrong_shape_is_reported_by_argument_and_axis():
    with pytest.raises(BringupError, match=r"BU301.*op `linear`: `weight`.*axis `in`"):
        linear(torch.zeros(2, 3), torch.zeros(5, 4))
    with pytest.raises(BringupError, match=r"BU301.*2 dimensions"):
        linear(torch.zeros(2, 3), torch.zeros(3))


def test_keyword_arguments_are_checked_as_positional_ones():
    x, weight, bias = torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(5)
    calls = [
        lambda: linear(x, weight=torch.zeros(5, 4)),
        lambda: linear(bias=bias, weight=weight, x=torch.zeros(2, 4)),
        lambda: linear(x=x, weight=torch.zeros(3, 5)),
    ]
    for call in calls:
        with pytest.raises(BringupError, match=r"BU301.*op `linear`: `weight`.*axis `in`"):
            call()
    with pytest.raises(BringupError, match=r"BU301.*op `linear`: `bias`.*axis `out`"):
        linear(x, weight, bias=torch.zeros(1))  # torch would broadcast it
    with pytest.raises(BringupError, match=r"BU301.*op `rms_norm`: `weight`.*axis `m`"):
        rms_norm(x, weight=torch.zeros(1), eps=1e-5)
    assert torch.equal(linear(weight=weight, x=x), linear(x, weight, None))
    assert linear(x, weight, bias=None).shape == (2, 5)


def test_a_call_that_is_none_of_the_op():
    x, weight = torch.zeros(2, 3), torch.zeros(5, 3)
    cases = [
        (lambda: linear(x, wieght=weight), "has no argument `wieght`", "did you mean `weight`?"),
        (lambda: linear(x, weight, q=1), "has no argument `q`", "its arguments are `x`, `weight`, `bias`"),
        (lambda: linear(x), "is called without `weight`", ""),
        (lambda: linear(x, weight, x=x), "has `x` by position and by keyword", ""),
        (lambda: linear(x, weight, None, 1), "accepts 3 positional arguments, not 4", ""),
        (lambda: linear(x, 1.0), "expects a tensor as `weight`, not a float", ""),
        (lambda: rope(x, x, x, True), "accepts 3 positional arguments, not 4", ""),
    ]
    for call, said, help in cases:
        with pytest.raises(BringupError, match="BU301") as caught:
            call()
        (finding,) = caught.value.findings
        assert said in finding.message
        assert help in finding.help


def test_a_declaration_names_the_arguments():
    with pytest.raises(TypeError, match="`g` accepts any number of arguments"):

        @op("x[N] -> [N]")
        def g(x, **settings):
            return x

    with pytest.raises(TypeError, match=r"declares \['y'\], but the arguments of `f` are \['x', 'scale'\]"):

        @op("y[N] -> [N]")
        def f(x, scale=2):
            return x * scale


def test_norms_equal_torch():
    x, w, b = torch.randn(4, 6), torch.randn(6), torch.randn(6)
    assert torch.allclose(layer_norm(x, w, b, 1e-5), torch.nn.functional.layer_norm(x, (6,), w, b, 1e-5), atol=1e-6)
    assert torch.allclose(rms_norm(x, w, 1e-5), torch.nn.functional.rms_norm(x, (6,), w, 1e-5), atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_those_of_transformers(name: str, dtype: torch.dtype) -> None:
    """Of every name that a config may state; transformers computes in float64, and the result is rounded once."""
    x = torch.linspace(-8, 8, 4001).to(dtype)
    exact = ACT2FN[name](x.double())
    ours = ACTIVATIONS[name](x)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, rtol=torch.finfo(dtype).eps, atol=4e-7)
