"""Faults, each planted in a kernel that bundles have: in its source, its PTX, or its call. Each is found and named.

What finds them is what `bringup kernels test` runs: `LaunchRunner`, and the comparison with what is right.
"""

from __future__ import annotations

import re
import shutil
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

from bringup.compile import ptx
from bringup.compile.gpu.kernel_plan import planned
from bringup.compile.gpu.trial.compare import departure
from bringup.compile.gpu.trial.launches import LaunchRunner
from bringup.compile.gpu.trial.steps import rows_of_step
from bringup.compile.kernels import source, worker
from bringup.compile.kernels.call import Kernel, KernelCall, Pointer
from bringup.compile.kernels.compiled import Compiled
from bringup.graphs.core.step import BLOCK
from tests.kernels.attention import Case
from tests.kernels.shipped import Built, buffers_of, built
from tests.kernels.tasks.attention import attended
from tests.kernels.tasks.products import product
from tests.kernels.tasks.task import Task

CAPABILITY = "sm_80"
FOLDER = Path(source.__path__[0])
DECODE = Case(lengths=(300, 70), blocks=5, heads=4, groups=2, has_sinks=True)
TASKS: dict[str, Callable[[], Task]] = {
    "linear": lambda: product(1, 1100, 4, "float32", "rms"),
    "attention_decode": lambda: attended(DECODE),
}


@dataclass(frozen=True)
class Fault:
    """`named`: what one of the findings matches. `text`: the file, what stands in it, and what is put there instead."""

    stem: str
    named: str
    text: tuple[str, str, str] | None = None
    ptx: Callable[[str], str] | None = None
    call: Callable[[KernelCall], KernelCall] | None = None
    capability: str = CAPABILITY


def without_a_release(text: str) -> str:
    """The counter is added to without an order."""
    return text.replace("atom.global.gpu.acq_rel", "atom.global.gpu.relaxed")


def without_a_barrier(text: str) -> str:
    """The second one: that between the parts of a sum that warps store, and those that they read."""
    parts = re.split(r"(bar\.sync[^\n]*\n)", text)
    return "".join([*parts[:3], *parts[4:]])


def without_zeros(text: str) -> str:
    """The registers of the loads of weights are not set where the mask is false."""
    return re.sub(
        r"mov\.u32 %r\d+, %r\d+;\n(?=(?:\s*mov\.u32[^\n]*\n)*\s*@%p\d+ ld\.global[^\n]*evict_first)", "", text
    )


def with_a_late_wait(text: str) -> str:
    """The wait for the launch before is the last that the kernel does."""
    before, wait, after = text.partition("griddepcontrol.wait ;")
    head, end, tail = after.rpartition("ret;")
    return f"{before}{head}{wait}\n{end}{tail}"


def exchanged(*names: str) -> Callable[[KernelCall], KernelCall]:
    """Two arguments of a call, by their buffers."""

    def change(call: KernelCall) -> KernelCall:
        one, other = (call.arguments.index(Pointer(name)) for name in names)
        arguments = list(call.arguments)
        arguments[one], arguments[other] = arguments[other], arguments[one]
        return replace(call, arguments=tuple(arguments))

    return change


def swapped_strides(call: KernelCall) -> KernelCall:
    constants = dict(call.kernel.constants)
    constants["K_ROW"], constants["K_HEAD"] = constants["K_HEAD"], constants["K_ROW"]
    return replace(call, kernel=replace(call.kernel, constants=tuple(constants.items())))


DEPARTS = (
    r"`out` departs from the reference by .* of 128 elements, in \[.*\]; stored by block \(.*\) at attention_decode"
)
UNWRITTEN = r"read of global memory never written: attention_parts\.py:\d+: .* at k \+ \d+ \(of \d+ bytes\)"
FAULTS = {
    "missing mask": Fault(
        "linear",
        r"out of bounds load of \d+ bytes at weight \+ \d+ \(of 17600 bytes\)(.|\n)* at linear\.py:\d+: .*ld\.global",
        text=("linear.py", "mask=live[:, None] & (at < K)", "mask=live[:, None] & (at < K + 999)"),
    ),
    "missing barrier": Fault("linear", r"read after write: .*: ld\.shared.* shared memory \+ ", ptx=without_a_barrier),
    "missing release": Fault(
        "attention_decode",
        r"another block's store read without its release: attention_decode\.py:\d+: .*ld\.global.* at scratch \+ \d+",
        ptx=without_a_release,
    ),
    "swapped strides": Fault("attention_decode", UNWRITTEN, call=swapped_strides),
    "wrong argument order": Fault("attention_decode", DEPARTS, call=exchanged("k", "v")),
    "an input for the result": Fault(
        "attention_decode",
        r"store to `q`, which the launch only reads: attention_decode\.py:\d+: .*st\.global",
        call=exchanged("q", "out"),
    ),
    "off-by-one split": Fault(
        "attention_decode",
        DEPARTS,
        text=("attention_decode.py", "tl.minimum(low + each * KEYS, end)", "tl.minimum(low + each * KEYS + 1, end)"),
    ),
    "off-by-one length": Fault(
        "attention_decode",
        UNWRITTEN,
        text=("attention_decode.py", "tl.minimum(position + 1, LENGTH)", "tl.minimum(position + 2, LENGTH)"),
    ),
    "missing `other`": Fault("linear", r"`out` departs from the reference by inf at .* in \[0, ", ptx=without_zeros),
    "wrong page": Fault(
        "attention_decode",
        UNWRITTEN,
        text=("attention_parts.py", "TABLE + key // BLOCK, mask", "TABLE + key // BLOCK + 1, mask"),
    ),
    "another sequence's page": Fault(
        "attention_decode",
        r"`out` departs .*in \[1, 0:4, 0:16\]; stored by block \(\d, \d, 1\)",
        text=("attention_parts.py", "block_table + sequence * TABLE + key", "block_table + key"),
    ),
    "double-counted sink": Fault(
        "attention_decode",
        DEPARTS,
        text=(
            "attention_decode.py",
            "        part = of_heads * SPLITS + split\n",
            "        part = of_heads * SPLITS + split\n        total += tl.exp2(sinks * 1.4426950408889634 - top)\n",
        ),
    ),
    "a fetch before the wait": Fault(
        "linear",
        r"access before the wait for the launch before: linear\.py:\d+: .* at x \+ 0 \(of \d+ bytes\)",
        ptx=with_a_late_wait,
        capability="sm_90",
    ),
    "stale scratch: a counter": Fault(
        "attention_decode",
        r"it leaves a nonzero counter: scratch \+ 0",
        text=("attention_decode.py", "            tl.store(counter, 0)\n", ""),
    ),
    "stale scratch: a part": Fault(
        "attention_decode",
        r"read of global memory never written: attention_decode\.py:\d+: .* at scratch \+ \d+",
        text=("attention_decode.py", "        tl.store(total_BHS + part, total, mask=is_head)\n", ""),
    ),
}  # fmt: skip


@pytest.fixture
def compiled_with(tmp_path, monkeypatch):
    """Compiles a kernel here, from a copy of the sources in which one text stands for another."""

    def compiled(
        kernel: Kernel, file: str = "", old: str = "", new: str = "", *, capability: str = CAPABILITY
    ) -> Compiled:
        package = f"planted_{tmp_path.name}"
        folder = shutil.copytree(FOLDER, tmp_path / package)
        for path in folder.glob("*.py"):
            text = path.read_text("utf-8").replace(source.__name__, package)
            if path.name == file:
                assert text.count(old) == 1, f"{file} has not one `{old}`"
                text = text.replace(old, new)
            path.write_text(text, "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
        monkeypatch.setattr(worker, "source", import_module(package))
        return worker.compile_kernel(kernel, capability)

    yield compiled
    for name in [name for name in sys.modules if name.startswith("planted_")]:
        del sys.modules[name]


@cache
def sound(stem: str) -> Built:
    return built(TASKS[stem](), CAPABILITY)


@cache
def results_of(stem: str) -> Mapping[str, np.ndarray]:
    """What the sound kernels give."""
    return sound(stem).run()[1]


def findings(stem: str, calls: tuple[KernelCall, ...], compiled: Mapping[Kernel, Compiled]) -> list[str]:
    """Of the calls' kernels, against the results of the sound ones."""
    whole, wanted = sound(stem), results_of(stem)
    plan = planned(CAPABILITY, {"f": (calls,)}, compiled)
    runner = LaunchRunner(plan, {plan.kernels[kernel].digest: each.assembly for kernel, each in compiled.items()})
    buffers = buffers_of(whole.task, whole.calls)
    arrays = {name.removeprefix("step:"): array for name, array in whole.task.arrays.items()}
    for name in "kv":
        if name in buffers:
            rows = rows_of_step(arrays, len(arrays[name]) // BLOCK)
            buffers[name] = replace(buffers[name], parts=rows)
    seen, found = runner.watched(calls, buffers)
    for name in found:
        buffer = whole.task.graph.buffers[name]
        dtype = whole.task.arrays[name].dtype if name in whole.task.arrays else np.dtype(buffer.dtype)
        off = departure(*(each[name].view(dtype).reshape(buffer.shape) for each in (found, wanted)))
        if off.element is not None:
            seen.findings.append(off.describe(name) + runner.origin(calls, buffers, name, off.element * dtype.itemsize))
    return seen.findings


@pytest.mark.parametrize("stem", TASKS)
def test_nothing_is_found_in_a_sound_kernel(stem: str) -> None:
    whole = sound(stem)
    compiled = {call.kernel: whole.compiled[whole.plan.kernels[call.kernel].digest] for call in whole.calls}
    assert findings(stem, whole.calls, compiled) == []


# Other faults of the same kernel and observer: each is compiled anew, in seconds.
ALIKE = {
    "off-by-one split",
    "off-by-one length",
    "another sequence's page",
    "double-counted sink",
    "stale scratch: a part",
}
PLANTED = [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in FAULTS]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_named(name: str, compiled_with) -> None:
    fault = FAULTS[name]
    whole = sound(fault.stem)
    (call,) = whole.calls
    compiled = whole.compiled[whole.plan.kernels[call.kernel].digest]
    if fault.capability != CAPABILITY:
        compiled = compiled_with(call.kernel, capability=fault.capability)
    if fault.ptx:
        text = fault.ptx(compiled.assembly)
        assert text != compiled.assembly
        compiled = replace(compiled, assembly=text)
    if fault.call:
        call = fault.call(call)
    if fault.text or call.kernel != whole.calls[0].kernel:
        compiled = compiled_with(call.kernel, *(fault.text or ()))
    found = findings(fault.stem, (call,), {call.kernel: compiled})
    assert any(re.search(fault.named, finding) for finding in found), "\n".join(found)


def test_an_overflow_of_32_bits_is_found_and_named(compiled_with) -> None:
    """A page whose rows lie past 2^31 elements, its row taken as an int32."""
    case = Case(lengths=(40,), blocks=1, dtype="bfloat16", channels=128, heads=2, groups=2)
    task = attended(case)
    (call,) = built(task, CAPABILITY).calls
    wide = ("attention_parts.py", "* BLOCK + key % BLOCK\n", "* BLOCK + key % BLOCK\n        row = row.to(tl.int32)\n")
    page = (1 << 31) // (2 * 128 * BLOCK) + 3
    size = (page + 2) * 2 * 128 * BLOCK * 2
    device = ptx.Device(2 * size + (1 << 24))
    places = {name: device.alloc(size, name, fresh=False) for name in "kv"}
    for name, array in task.arrays.items():
        if name not in places:
            places[name] = device.put(array + page if name == "step:block_table" else array, name)
    places["scratch"] = device.alloc(max(call.scratch, 4096), "scratch")
    device.fill(places["scratch"], 0, 4096)

    def packed(kind: str, value: Pointer | float) -> bytes:
        if isinstance(value, Pointer):
            return struct.pack("<Q", places[value.buffer] + value.offset)
        return struct.pack({"fp32": "<f", "i32": "<i"}.get(kind, "<Q"), value)

    for fault, named in (((), None), (wide, r"out of bounds load .* at .*, or at k \+ \d+ .* 32 bits overflowed")):
        compiled = built(task, CAPABILITY).compiled.popitem()[1] if not fault else compiled_with(call.kernel, *fault)
        arguments = [packed(kind, value) for kind, value in zip(call.kernel.types, call.arguments, strict=True)]
        program = ptx.Program(compiled.assembly)
        launch = {"grid": call.grid, "arguments": [*arguments, bytes(8), bytes(8)], "shared": compiled.shared}
        if named is None:
            program.launch(device, **launch)
        else:
            with pytest.raises(ptx.Fault, match=named):
                program.launch(device, **launch)
