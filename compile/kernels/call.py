"""KernelCall: one start of one compiled kernel, as plain data. A launch of a schedule becomes one or more of them."""

from __future__ import annotations

from dataclasses import dataclass

Constant = int | float | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A Triton kernel with all its compile-time settings. Equal kernels are compiled once.

    `stem` names a file of bringup/compile/kernels/source, `lora.lora_shrink` one of its folder lora, and the
    `@triton.jit` function in it, which has the file's name. Run-time parameters come
    first in the function's signature: `types` are theirs, as Triton writes them (`*bf16`, `i32`, `fp32`). `constants`
    are the `tl.constexpr` parameters by name. `aligned` are the positions of run-time parameters whose address, or
    value, is divisible by 16.
    """

    stem: str
    types: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...] = ()
    aligned: tuple[int, ...] = ()
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address: a buffer of the launch's function (`OpGraph.buffers`), `offset` bytes after its begin.

    The buffer `scratch` belongs to no function: all launches of an entry point share it. It is zero before the first
    launch, and a kernel that counts in it leaves zeros there.
    """

    buffer: str
    offset: int = 0


SCRATCH = "scratch"
Operand = Pointer | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """A start of a kernel: `grid` in programs, `arguments` for its run-time parameters in order.

    `scratch`: the bytes of the buffer `scratch` that it uses.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: tuple[Operand, ...]
    scratch: int = 0
