"""Faults, each planted in a kernel that bundles have: in its source, its PTX, or its call. Each is found and named.

What finds them is what `bringup kernels test` runs: `LaunchRunner`, and the comparison with what is right.
"""

from __future__ import annotations

import re
import shutil
import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

from bringup.compile import ptx
from bringup.compile.cache.store import default_store
from bringup.compile.gpu.kernel_plan import planned
from bringup.compile.gpu.trial.compare import departure
from bringup.compile.gpu.trial.launches import LaunchRunner
from bringup.compile.gpu.trial.steps import rows_of_step
from bringup.compile.kernels import source, worker
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import Kernel, KernelCall, Pointer
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.kernels.source import generated
from bringup.graphs.core.step import BLOCK
from tests.kernels.attention import Case
from tests.kernels.faults import CAPABILITY, FAULTS, TASKS
from tests.kernels.shipped import Built, buffers_of, built
from tests.kernels.tasks.attention import attended

FOLDER = Path(source.__path__[0])


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
        monkeypatch.setattr(generated, "function_of", import_module(f"{package}.generated").function_of)
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
    call = whole.calls[fault.number]
    others = compile_kernels([each.kernel for each in whole.calls if each != call], fault.capability, default_store())
    compiled = whole.compiled[whole.plan.kernels[call.kernel].digest]
    if fault.capability != CAPABILITY:
        compiled = compiled_with(call.kernel, capability=fault.capability)
    if fault.ptx:
        text = fault.ptx(compiled.assembly)
        assert text != compiled.assembly
        compiled = replace(compiled, assembly=text)
    if fault.call:
        call = fault.call(call)
    if fault.text or call.kernel != whole.calls[fault.number].kernel:
        compiled = compiled_with(call.kernel, *(fault.text or ()))
    calls = (*whole.calls[: fault.number], call, *whole.calls[fault.number + 1 :])
    found = findings(fault.stem, calls, {**others, call.kernel: compiled})
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
