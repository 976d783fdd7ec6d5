"""What docs/targets.md says that IREE refuses. When one of these fails, IREE has learnt it: shorten the page."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch_mlir.fx import export_and_import

from bringup.compile.targets.iree_compiler import IreeOptions, LoweringError, compile_mlir

# A processor that has products of bfloat16, on whatever machine this runs: for others IREE compiles it.
BF16_PRODUCTS = IreeOptions(device_flags=("--iree-llvmcpu-target-cpu=sapphirerapids",))


class NormThenLinear(torch.nn.Module):
    def forward(self, x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        return torch.nn.functional.linear(gain * scaled.to(x.dtype), weight)


def lowered(channels: int, dtype: torch.dtype) -> bytes:
    shapes = ((1, channels), (channels,), (20, channels))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        module = export_and_import(
            NormThenLinear(), *(torch.zeros(shape, dtype=dtype) for shape in shapes), output_type="torch"
        )
    return compile_mlir(str(module), BF16_PRODUCTS)


@pytest.mark.slow
def test_an_odd_row_of_bfloat16() -> None:
    with pytest.raises(LoweringError, match=r"map_store. op write affecting operations on global resources"):
        lowered(35, torch.bfloat16)
    assert lowered(36, torch.bfloat16)
    assert lowered(35, torch.float32)
