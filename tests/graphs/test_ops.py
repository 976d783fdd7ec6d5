"""Ops: wrong shapes are told by name; references equal brute force."""

from __future__ import annotations

import pytest
import torch

from bringup.diagnostics import BringupError
from bringup.graphs.ops.linear import linear
from bringup.graphs.ops.norm import layer_norm, rms_norm


def test_wrong_shape_is_told_by_argument_and_axis():
    with pytest.raises(BringupError, match=r"BU301.*op `linear`: `weight`.*axis `in`"):
        linear(torch.zeros(2, 3), torch.zeros(5, 4))
    with pytest.raises(BringupError, match=r"BU301.*2 dimensions"):
        linear(torch.zeros(2, 3), torch.zeros(3))


def test_norms_equal_torch():
    x, w, b = torch.randn(4, 6), torch.randn(6), torch.randn(6)
    assert torch.allclose(layer_norm(x, w, b, 1e-5), torch.nn.functional.layer_norm(x, (6,), w, b, 1e-5), atol=1e-6)
    assert torch.allclose(rms_norm(x, w, 1e-5), torch.nn.functional.rms_norm(x, (6,), w, 1e-5), atol=1e-6)
