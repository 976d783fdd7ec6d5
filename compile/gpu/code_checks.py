"""Compares a kernel of `kernels.json` with the metadata in its hsaco: name, architecture, block and arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bringup.compile.gpu.driver.arguments import size_of
from bringup.compile.gpu.kernel_plan import PlannedKernel
from bringup.compile.kernels.code_object import CodeArgument, CodeKernel

POINTER, NUMBER = "global_buffer", "by_value"


def code_problems(planned: PlannedKernel, code: CodeKernel, architecture: str) -> Iterator[str]:
    """One message for each difference between a kernel of `kernels.json` and its hsaco, `code`.

    A launch with such a difference would read wrong arguments or have blocks of the wrong size. `architecture` is that
    of the bundle, such as `gfx942`.
    """
    if (code.name, code.symbol) != (planned.name, f"{planned.name}.kd"):
        yield f"the hsaco has the kernel `{code.name}`, not `{planned.name}`"
    if (code.architecture, code.features) != (architecture, ""):
        yield f"the hsaco is for {code.architecture}{code.features}, not for {architecture}"
    if (code.wavefront, code.threads) != (planned.warp_size, planned.threads):
        yield f"the hsaco has blocks of {code.threads} threads, wavefronts of {code.wavefront}"
    expected = arguments_of(planned.types)
    if code.arguments != expected:
        number = next((n for n, pair in enumerate(zip(code.arguments, expected, strict=False)) if pair[0] != pair[1]),
                      min(len(code.arguments), len(expected)))  # fmt: skip
        yield f"argument {number} of `{planned.name}` does not match the hsaco"


def arguments_of(types: Sequence[str]) -> tuple[CodeArgument, ...]:
    """Offset, size and kind of each argument, as a compiler lays them out: in order, aligned to their sizes in bytes.

    `types` are Triton's names (`*bf16`, `i32`). Raises ValueError for a type that is not passed by value.
    """
    found: list[CodeArgument] = []
    end = 0
    for type_ in types:
        size = size_of(type_)
        begin = -(-end // size) * size
        found.append(CodeArgument(begin, size, POINTER if type_.startswith("*") else NUMBER))
        end = begin + size
    return tuple(found)
