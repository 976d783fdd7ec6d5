"""KernelCall: one start of a compiled kernel, as plain data. A launch of a schedule consists of one or more calls."""

from __future__ import annotations

from dataclasses import dataclass

Constant = int | float | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A Triton kernel with all its compile-time settings. Equal kernels are compiled once.

    `stem` is the name of a file in compile/kernels/source, and of the `@triton.jit` function in it; `lora.lora_shrink`
    is in its folder lora. Run-time parameters come first in the function's signature. `types` are their types in
    Triton's notation (`*bf16`, `i32`, `fp32`). `constants` are the `tl.constexpr` parameters, by name. `aligned` are
    the positions of run-time parameters whose address or value is divisible by 16.
    """

    stem: str
    types: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...] = ()
    aligned: tuple[int, ...] = ()
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address: `offset` bytes after the begin of a buffer of the launch's function (`OpGraph.buffers`).

    The buffer `scratch` belongs to no function: all launches of an entry point share it. It is zero before the first
    launch, and a kernel that counts in it resets its counters to zero.
    """

    buffer: str
    offset: int = 0


SCRATCH = "scratch"
Operand = Pointer | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """A start of a kernel. `grid`: the number of programs on each axis. `arguments`: its launch arguments, in order.

    `scratch`: how many bytes of the buffer `scratch` it uses.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: tuple[Operand, ...]
    scratch: int = 0
