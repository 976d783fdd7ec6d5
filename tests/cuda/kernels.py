"""Two kernels for the tests of the driver, compiled by Triton once in a process."""

from __future__ import annotations

import functools

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bringup.compile.kernels.compiled import Compiled


@triton.jit
def scale(x, y, count, factor, BLOCK: tl.constexpr):
    """y = factor · x of `count` numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, factor * tl.load(x + at, mask=at < count, other=0.0), mask=at < count)


@triton.jit
def unchecked(x, y, count, factor, BLOCK: tl.constexpr):
    """The same without a bound: the last program reads and writes past the end."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, factor * tl.load(x + at))


TYPES = ("*fp32", "*fp32", "i32", "fp32")


@functools.cache
def compiled(name: str, capability: int = 90, block: int = 128) -> Compiled:
    """A kernel of this file by name."""
    function = {"scale": scale, "unchecked": unchecked}[name]
    signature = dict(zip(("x", "y", "count", "factor"), TYPES, strict=True)) | {"BLOCK": "constexpr"}
    source = ASTSource(fn=function, signature=signature, constexprs={(4,): block})
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False})
    return Compiled(
        name=built.metadata.name,
        capability=f"sm_{capability}",
        binary=built.asm["cubin"],
        assembly=built.asm["ptx"],
        ttgir=built.asm["ttgir"],
        types=(*TYPES, "*i8", "*i8"),
        num_warps=built.metadata.num_warps,
        warp_size=32,
        shared=built.metadata.shared,
    )
