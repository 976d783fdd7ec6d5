"""The kernels of kernels.py with their settings, compiled for each target."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bringup.compile import ptx
from tests.ptx import checks, kernels
from tests.ptx.checks import BF16, BF16_ROUNDED, E4M3, E5M2, EXACT, F16, F32, FP32, S8, S32, TF32, Result, Start

_PACK = {"i32": "<i", "i64": "<q", "fp32": "<f"}
TARGETS = (80, 89, 90)


@dataclass(frozen=True)
class Compiled:
    """PTX, and what its launch needs."""

    text: str
    types: tuple[str, ...]
    shared: int
    scratch: int

    def start(
        self, program: ptx.Program, device: ptx.Device, grid: tuple[int, ...], *arguments: Any, **how: Any
    ) -> ptx.Run:
        """Launches `program`, which may be a mutant of the text."""
        packed = [
            struct.pack("<Q" if kind[0] == "*" else _PACK[kind], value)
            for kind, value in zip(self.types, arguments, strict=True)
        ]
        scratch = device.alloc(self.scratch * int(np.prod(grid)), "scratch") if self.scratch else 0
        packed += [struct.pack("<Q", scratch), struct.pack("<Q", 0)]
        return program.launch(device, grid, packed, shared=self.shared, **how)


@dataclass(frozen=True)
class Case:
    """A kernel with settings; `check` launches it on some shapes and yields results with references."""

    kernel: Any
    types: str
    constants: dict[str, Any]
    check: Callable[[Start], Iterator[Result]]
    options: dict[str, Any] = field(default_factory=dict)
    targets: tuple[int, ...] = TARGETS


def compiled(name: str, target: int) -> Compiled:
    """A case's kernel for sm_<target>."""
    result = _build(name, target)
    types = tuple(CASES[name].types.split())
    return Compiled(result.asm["ptx"], types, result.metadata.shared, result.metadata.global_scratch_size)


def assembled(name: str, target: int) -> tuple[str, bytes]:
    """The PTX and the cubin of a case."""
    result = _build(name, target)
    return result.asm["ptx"], result.asm["cubin"]


@cache
def _build(name: str, target: int) -> Any:
    case = CASES[name]
    types = tuple(case.types.split())
    names = case.kernel.arg_names
    signature = dict(zip(names, types, strict=False)) | {key: "constexpr" for key in case.constants}
    aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(types) if kind != "fp32"}
    constants = {(names.index(key),): value for key, value in case.constants.items()}
    source = ASTSource(case.kernel, signature, constants, aligned)
    options = {"enable_fp_fusion": False, **case.options}
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)


@cache
def program(name: str, target: int) -> ptx.Program:
    return ptx.Program(compiled(name, target).text)


def _matrix(
    kind: str, out: str, tile: tuple[int, int, int], check: Callable[[Start], Iterator[Result]], **more: Any
) -> Case:
    sums, results = (
        (tl.int32, tl.int32)
        if out == "i32"
        else (tl.float32, {"bf16": tl.bfloat16, "fp16": tl.float16}.get(out, tl.float32))
    )
    constants = {"PRECISION": "tf32", "OUT": results, "SUM": sums, "BM": tile[0], "BN": tile[1], "BK": tile[2]}
    return Case(
        kernels.gemm,
        f"*{kind} *{kind} *{out} i32 i32 i32 i32 i32",
        constants,
        check,
        **{"options": {"num_stages": 3}, **more},
    )


_BF16_GEMM = _matrix("bf16", "bf16", (64, 64, 32), checks.gemm(BF16, BF16, BF16_ROUNDED))
_DESCRIPTORS = {"SPECIALIZE": False, "BM": 128, "BN": 128, "BK": 64}
_TMA = Case(
    kernels.gemm_descriptors,
    "*bf16 *bf16 *bf16 i32 i32 i32",
    _DESCRIPTORS,
    checks.gemm_descriptors,
    {"num_stages": 3, "num_warps": 8},
    (90,),
)
_SPLIT = {"D": 64, "PAGE": 16, "SPLITS": 4, "BT": 32, "BARRIER": True}
_ROWS = "*bf16 *bf16 *bf16 *i32 *i32 *fp32 *fp32 *i32 *bf16 fp32"
CASES: dict[str, Case] = {
    "rms_norm": Case(kernels.rms_norm, "*bf16 *bf16 *bf16 i32 i32 fp32", {"BLOCK": 1024}, checks.rms_norm),
    "gemv": Case(kernels.gemv, "*bf16 *bf16 *fp32 i32 i32", {"BN": 8, "BK": 256}, checks.gemv),
    "gemm_bf16": _BF16_GEMM,
    "gemm_bf16_rows": replace(_BF16_GEMM, check=checks.gemm(BF16, BF16, BF16_ROUNDED, rows_of_b=True)),
    "gemm_fp16": _matrix("fp16", "fp16", (64, 64, 32), checks.gemm(F16, F16, 1e-3)),
    "gemm_tf32": _matrix("fp32", "fp32", (64, 64, 32), checks.gemm(F32, F32, TF32)),
    "gemm_s8": _matrix("i8", "i32", (64, 64, 64), checks.gemm(S8, S32, EXACT)),
    "gemm_e4m3": _matrix("fp8e4nv", "fp32", (64, 64, 64), checks.gemm(E4M3, F32, FP32), targets=(89, 90)),
    "gemm_e5m2": _matrix("fp8e5", "fp32", (64, 64, 64), checks.gemm(E5M2, F32, FP32)),
    "gemm_wide": _matrix(
        "bf16",
        "bf16",
        (128, 128, 64),
        checks.gemm(BF16, BF16, BF16_ROUNDED, tile=128),
        options={"num_stages": 3, "num_warps": 8},
    ),
    "gemm_tma": _TMA,
    "gemm_specialized": replace(
        _TMA, constants={**_DESCRIPTORS, "SPECIALIZE": True}, options={"num_stages": 3, "num_warps": 4}
    ),
    "flash": Case(
        kernels.flash,
        "*bf16 *bf16 *bf16 *bf16 i32 i32 fp32",
        {"D": 64, "BM": 64, "BN": 64},
        checks.flash,
        {"num_stages": 2},
    ),
    "decode": Case(kernels.decode, _ROWS, _SPLIT, checks.decode),
    "softmax_argmax": Case(kernels.softmax_argmax, "*fp32 *fp32 *i32 i32 i32", {"BLOCK": 1024}, checks.softmax_argmax),
    "histogram": Case(kernels.histogram, "*i32 *fp32 *i32 *fp32 *i32 i32", {"BLOCK": 256}, checks.histogram),
    "grid_barrier": Case(
        kernels.grid_barrier,
        "*fp32 *fp32 *i32 *fp32 i32",
        {"PROGRAMS": 8, "BLOCK": 256},
        checks.grid_barrier,
        {"launch_cooperative_grid": True},
    ),
    "rope": Case(kernels.rope, "*bf16 *fp32 *fp32 *i32 *bf16", {"HEADS": 3, "D": 64}, checks.rope, {"num_warps": 1}),
    "quantize_e4m3": Case(
        kernels.quantize,
        "*bf16 *fp8e4nv *fp32 i32",
        {"FORMAT": tl.float8e4nv, "LARGEST": 448.0, "GROUP": 128},
        checks.quantize(E4M3, 448.0),
        {"num_warps": 1},
        (89, 90),
    ),
    "quantize_e5m2": Case(
        kernels.quantize,
        "*bf16 *fp8e5 *fp32 i32",
        {"FORMAT": tl.float8e5, "LARGEST": 57344.0, "GROUP": 128},
        checks.quantize(E5M2, 57344.0),
        {"num_warps": 1},
    ),
}
