"""The flags for the processor of this machine, from what iree-compile prints of it."""

from __future__ import annotations

import pytest

from bringup.compile.targets.iree_compiler import compile_mlir
from bringup.compile.targets.iree_processors import HOST, accepted_cpus, flags_of, host_flags

PRODUCT = """
func.func @f(%a: tensor<32x32xbf16>, %b: tensor<32x32xbf16>) -> tensor<32x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x32xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x32xf32>) -> tensor<32x32xf32>
  %product = linalg.matmul ins(%a, %b : tensor<32x32xbf16>, tensor<32x32xbf16>)
    outs(%start : tensor<32x32xf32>) -> tensor<32x32xf32>
  return %product : tensor<32x32xf32>
}
"""


@pytest.mark.parametrize(
    ("features", "flags"),
    [
        ("+avx2,+avx512f,-avx512bf16,+avx512f", (HOST,)),
        ("+avx512f,+avx512bf16,+fma,-amx-tile,-avx512bf16", "+avx512f,+fma"),
        ("-rtm,+avx512bf16,+avx512f,-avx512bf16,+rtm", "+rtm,+avx512f"),
    ],
)
def test_hidden_features(features: str, flags: str | tuple[str, ...]) -> None:
    if isinstance(flags, str):
        flags = ("--iree-llvmcpu-target-cpu=generic", f"--iree-llvmcpu-target-cpu-features={flags}")
    assert flags_of(features) == flags


def test_this_machine() -> None:
    """A product of bfloat16 is compiled, which LLVM ends with an abort if the features are those of the name alone."""
    assert {"sapphirerapids", "neoverse-n1"} & set(accepted_cpus())
    assert host_flags()[0] in (HOST, "--iree-llvmcpu-target-cpu=generic")
    assert compile_mlir(PRODUCT)
