"""KernelPlan: the compiled kernels of a bundle and the calls of its launches; `kernels.json` and the kernels' files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bringup.compile.gpu.plan_fields import MOST_SCRATCH, field_problems, number_problem
from bringup.compile.kernels.architectures import is_nvidia
from bringup.compile.kernels.call import SCRATCH, Kernel, KernelCall, Operand, Pointer
from bringup.compile.kernels.compiled import Compiled, kernel_from_json, kernel_to_json
from bringup.compile.kernels.select.sampling import Drawing
from bringup.compile.schedule.graph.op_graph import OpGraph
from bringup.system.atomic import write_file

FILE = "kernels.json"
WAIT = "griddepcontrol.wait"  # PTX ISA: waits until the grids that this one depends on have ended
DRAWING = ("last", "after")  # the fields of `Drawing`
# The fields of `PlannedKernel` that are numbers and texts.
_PLAIN = ("digest", "ptx_digest", "name", "num_warps", "warp_size", "shared", "global_scratch_size",
          "global_scratch_align", "waits")  # fmt: skip
_TEXT = re.compile(r"^\.version (\d+)\.(\d+)\n\.target (\w+)", re.MULTILINE)
Calls = Mapping[str, Sequence[Sequence[KernelCall]]]  # by function: the calls of each of its groups


class Files(NamedTuple):
    """The folders of a bundle with the binaries and the assembly of kernels, and the suffixes of their files."""

    binaries: str
    suffix: str
    assembly: str
    text_suffix: str

    def binary(self, folder: Path, digest: str) -> Path:
        """The path of a binary, by the SHA-256 of its bytes."""
        return folder / self.binaries / f"{digest}.{self.suffix}"

    def text(self, folder: Path, digest: str) -> Path:
        """The path of the assembly of a binary, by the SHA-256 of the binary."""
        return folder / self.assembly / f"{digest}.{self.text_suffix}"


CUDA_FILES, ROCM_FILES = Files("cubins", "cubin", "ptx", "ptx"), Files("hsaco", "hsaco", "amdgcn", "s")


def files_of(capability: str) -> Files:
    """The folders of a bundle for an architecture (`sm_90`, `gfx942`)."""
    return CUDA_FILES if is_nvidia(capability) else ROCM_FILES


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKernel:
    """A compiled kernel without its bytes. `digest` is the SHA-256 of its binary, and names its files. See `Compiled`.

    `ptx_digest` is the SHA-256 of its assembly. `shared` and `global_scratch_size` are in bytes, the latter for each
    program. `waits`: the kernel itself waits until the previous launch has ended, so it may start early.
    """

    kernel: Kernel
    digest: str
    ptx_digest: str
    name: str
    types: tuple[str, ...]
    num_warps: int
    warp_size: int
    shared: int
    global_scratch_size: int
    global_scratch_align: int
    waits: bool

    @property
    def threads(self) -> int:
        """Threads of a program."""
        return self.num_warps * self.warp_size


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    """The kernel calls of the groups of every function, in order, and the kernels.

    `target` is the architecture that the PTX names: kernels for `sm_90a` run only on compute capability 9.0, those for
    `sm_80` on 8.0 and later minor versions of 8. `ptx_version` is the newest version of any PTX. AMD's kernels have no
    PTX: their `target` is the architecture, and their version is (0, 0). `sampling` has the calls of a step of a decode
    entry point that samples tokens, by the name of the entry point.
    """

    capability: str
    target: str
    ptx_version: tuple[int, int]
    kernels: Mapping[Kernel, PlannedKernel]
    calls: Calls
    sampling: Mapping[str, Drawing] = field(default_factory=dict[str, Drawing])

    @property
    def scratch(self) -> int:
        """Bytes of the buffer `scratch`, which all calls share."""
        return max((call.scratch for call in self.every_call()), default=0)

    @property
    def global_scratch(self) -> int:
        """Largest global scratch memory of any call, in bytes."""
        sizes = (self.global_scratch_of(call) for call in self.every_call())
        return max(sizes, default=0)

    def global_scratch_of(self, call: KernelCall) -> int:
        """Bytes of global scratch memory of all programs of one call."""
        x, y, z = call.grid
        return self.kernels[call.kernel].global_scratch_size * x * y * z

    def every_call(self) -> Iterator[KernelCall]:
        """All calls: those of functions, in order, then those that sample."""
        for groups in self.calls.values():
            for calls in groups:
                yield from calls
        for drawing in self.sampling.values():
            yield from drawing.every_call()


def planned(
    capability: str,
    calls: Calls,
    compiled: Mapping[Kernel, Compiled],
    sampling: Mapping[str, Drawing] | None = None,
) -> KernelPlan:
    """The plan of `calls` and `sampling`; `compiled` has all their kernels. `capability`: the architecture."""
    digests = {kernel: hashlib.sha256(each.binary).hexdigest() for kernel, each in compiled.items()}
    texts = {digests[kernel]: each.assembly for kernel, each in compiled.items()}  # one text for each binary
    kernels = {
        kernel: PlannedKernel(
            kernel=kernel,
            digest=digests[kernel],
            ptx_digest=hashlib.sha256(texts[digests[kernel]].encode()).hexdigest(),
            name=each.name,
            types=each.types,
            num_warps=each.num_warps,
            warp_size=each.warp_size,
            shared=each.shared,
            global_scratch_size=each.global_scratch_size,
            global_scratch_align=each.global_scratch_align,
            waits=WAIT in each.assembly,
        )
        for kernel, each in compiled.items()
    }
    heads = [found.groups() for each in compiled.values() if (found := _TEXT.search(each.assembly))]
    versions = [(int(major), int(minor)) for major, minor, _ in heads]
    target = heads[0][2] if heads else capability
    return KernelPlan(
        capability=capability,
        target=target,
        ptx_version=max(versions, default=(0, 0)),
        kernels=kernels,
        calls=calls,
        sampling=sampling or {},
    )


def write_plan(plan: KernelPlan, compiled: Mapping[Kernel, Compiled], folder: Path) -> None:
    """Writes `kernels.json`, and the binary and the assembly of each kernel."""
    files = files_of(plan.capability)
    for name in (files.binaries, files.assembly):
        (folder / name).mkdir(exist_ok=True)
    for kernel, each in compiled.items():
        digest = plan.kernels[kernel].digest
        write_file(files.binary(folder, digest), each.binary)
        write_file(files.text(folder, digest), each.assembly.encode())
    write_file(folder / FILE, json.dumps(plan_to_json(plan)).encode())


def read_plan(folder: Path, graphs: Mapping[str, OpGraph]) -> KernelPlan:
    """The plan of a bundle, checked against `graphs`. Raises ValueError if it is invalid, OSError without a file."""
    try:
        data = json.loads((folder / FILE).read_text("utf-8"))
        problem = next(field_problems(data), None)
        plan = None if problem else plan_from_json(data)
        problem = problem or (plan and next(_problems(plan, graphs), None))
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        message = f"{type(error).__name__}: {error}"
        raise ValueError(f"`{FILE}` was not written by `bringup compile`: {message}") from error
    if problem or plan is None:
        raise ValueError(f"`{FILE}`: {problem}")
    return plan


def plan_to_json(plan: KernelPlan) -> dict[str, Any]:
    """The content of `kernels.json`. Calls refer to kernels by their index in the list of kernels."""
    kernels = list(plan.kernels.values())
    numbers = {each.kernel: number for number, each in enumerate(kernels)}
    calls = {
        name: [[_call_to_json(call, numbers) for call in group] for group in groups]
        for name, groups in plan.calls.items()
    }
    return {
        "capability": plan.capability,
        "target": plan.target,
        "ptx_version": list(plan.ptx_version),
        "kernels": [_kernel_to_json(each) for each in kernels],
        "calls": calls,
        "sampling": {
            name: {part: [_call_to_json(call, numbers) for call in getattr(drawing, part)] for part in DRAWING}
            for name, drawing in plan.sampling.items()
        },
    }


def plan_from_json(data: Mapping[str, Any]) -> KernelPlan:
    """The inverse of `plan_to_json`. Fields must have been checked with `field_problems`."""
    kernels = [_kernel_from_json(item) for item in data["kernels"]]
    calls = {
        name: tuple(tuple(_call_from_json(item, kernels) for item in group) for group in groups)
        for name, groups in data["calls"].items()
    }
    sampling = {
        name: Drawing(*(tuple(_call_from_json(item, kernels) for item in drawing[part]) for part in DRAWING))
        for name, drawing in data["sampling"].items()
    }
    major, minor = data["ptx_version"]
    return KernelPlan(
        capability=str(data["capability"]),
        target=str(data["target"]),
        ptx_version=(int(major), int(minor)),
        kernels={each.kernel: each for each in kernels},
        calls=calls,
        sampling=sampling,
    )


def _kernel_to_json(each: PlannedKernel) -> dict[str, Any]:
    plain = {name: getattr(each, name) for name in _PLAIN}
    return plain | {"types": list(each.types), "kernel": kernel_to_json(each.kernel)}


def _kernel_from_json(fields: Mapping[str, Any]) -> PlannedKernel:
    plain = {name: fields[name] for name in _PLAIN}
    return PlannedKernel(kernel=kernel_from_json(fields["kernel"]), types=tuple(fields["types"]), **plain)


def _call_to_json(call: KernelCall, numbers: Mapping[Kernel, int]) -> dict[str, Any]:
    arguments = [[each.buffer, each.offset] if isinstance(each, Pointer) else each for each in call.arguments]
    return {"kernel": numbers[call.kernel], "grid": list(call.grid), "arguments": arguments, "scratch": call.scratch}


def _call_from_json(fields: Mapping[str, Any], kernels: Sequence[PlannedKernel]) -> KernelCall:
    x, y, z = map(int, fields["grid"])
    arguments = tuple(map(_operand, fields["arguments"]))
    kernel = kernels[int(fields["kernel"])].kernel
    return KernelCall(kernel=kernel, grid=(x, y, z), arguments=arguments, scratch=int(fields["scratch"]))


def _operand(item: Any) -> Operand:
    match item:
        case [str(name), int(offset)]:
            return Pointer(name, offset)
        case int() | float():
            return item
        case _:
            raise TypeError(f"an argument is {item!r}")


def _problems(plan: KernelPlan, graphs: Mapping[str, OpGraph]) -> Iterator[str]:
    """A message for each call that does not match the graph of its function."""
    for name, graph in graphs.items():
        if len(plan.calls.get(name, ())) != len(graph.groups):
            yield f"it has no calls for all launches of `{name}`"
            return
        for call in (call for group in plan.calls[name] for call in group):
            sizes = {buffer: found.nbytes for buffer, found in graph.buffers.items()}
            yield from call_problems(call, sizes, plan.kernels[call.kernel], name)
    if plan.global_scratch > MOST_SCRATCH:
        yield f"a launch has {plan.global_scratch:,} bytes of global scratch memory"


def call_problems(call: KernelCall, sizes: Mapping[str, int], kernel: PlannedKernel, where: str) -> Iterator[str]:
    """A message for each argument that does not match the kernel's types or the buffers' sizes in bytes, `sizes`."""
    if len(kernel.types) != len(call.arguments) + 2:
        yield f"`{kernel.name}` has {len(kernel.types) - 2} parameters, the call has {len(call.arguments)} arguments"
        return
    for value, type_ in zip(call.arguments, kernel.types, strict=False):
        if isinstance(value, Pointer) is not type_.startswith("*"):
            yield f"`{kernel.name}` expects {type_}, not {value}"
        elif not isinstance(value, Pointer):
            if problem := number_problem(type_, value):
                yield f"`{kernel.name}` expects {type_}, not {value}: {problem}"
        elif not 0 <= value.offset < _bytes_of(value.buffer, call, sizes):
            yield f"`{kernel.name}` reads `{value.buffer}` + {value.offset}, which is not in a buffer of `{where}`"


def _bytes_of(buffer: str, call: KernelCall, sizes: Mapping[str, int]) -> int:
    """Bytes of a buffer that a call may access: its declared scratch memory, or the buffer's size; 0 if unknown."""
    if buffer == SCRATCH:
        return call.scratch
    found = sizes.get(buffer)
    return 0 if found is None else max(found, 1)
