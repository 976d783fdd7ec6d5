"""Runs the kernels of a function's groups in this process, one thread after the other, between guarded bytes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from bringup.compile.kernels.call import Operand
from bringup.compile.llvm.ir.machine import Machine, generic, host
from bringup.compile.llvm.module import Loaded, compiled, texts_of
from bringup.compile.llvm.select.call import SHARED, Call, Kernel
from bringup.compile.llvm.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import Group, OpGraph

# What a processor has beyond any of its kind, by what kernels differ in: the width of vectors, float16, sums of bytes,
# sums of pairs of bfloat16.
_AVX2 = ("avx", "avx2", "f16c", "fma")
_AVX512 = (*_AVX2, "avx512bw", "avx512dq", "avx512f", "avx512vl")
_FEATURES = {
    **{"f16c": ("avx", "f16c"), "avx2": _AVX2, "avxvnni": (*_AVX2, "avxvnni"), "avx512": _AVX512},
    **{"avx512vnni": (*_AVX512, "avx512vnni"), "avx512bf16": (*_AVX512, "avx512bf16", "avx512vbmi", "avx512vnni")},
}
VARIANTS: Mapping[str, Machine] = {
    name: Machine(triple=host().triple, cpu=generic().cpu, features=tuple(sorted(features)))
    for name, features in _FEATURES.items()
    if host().is_x86
}


def _machines() -> Mapping[str, Machine]:
    """This processor, the portable variant, and those between them that run here."""
    runs = {name: machine for name, machine in VARIANTS.items() if machine.runs_on(host())}
    return {"host": host(), "generic": generic(), **runs}


MACHINES = _machines()
GUARD, BYTE = 256, 0xA5
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Memory:
    """Copies of arrays, each with bytes around it that nothing may write."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._raw: dict[str, np.ndarray] = {}
        self._like = dict(arrays)
        for name, array in arrays.items():
            raw = np.full(array.nbytes + 2 * GUARD, BYTE, np.uint8)
            raw[GUARD : GUARD + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self._raw[name] = raw

    def address(self, name: str) -> int:
        return self._raw[name].ctypes.data + GUARD

    def read(self, name: str) -> np.ndarray:
        like = self._like[name]
        return self._raw[name][GUARD : GUARD + like.nbytes].view(like.dtype).reshape(like.shape)

    def check(self) -> None:
        for name, raw in self._raw.items():
            assert (raw[:GUARD] == BYTE).all(), f"bytes before `{name}` were written"
            assert (raw[GUARD + self._like[name].nbytes :] == BYTE).all(), f"bytes after `{name}` were written"


def run(graph: OpGraph, arrays: Mapping[str, np.ndarray], machine: str = "host", threads: int = 2) -> Memory:
    """The memory after all calls of the groups; kernels wait for nothing inside, so threads can run one by one."""
    listed = [calls_of(graph, group, MACHINES[machine]) for group in graph.groups]
    assert None not in listed
    shared = max((call.shared for calls in listed for call in calls or ()), default=0)
    memory = Memory(arrays | {SHARED: np.full(shared, 0xFF, np.uint8)})  # NaN
    for calls in listed:
        for call in calls or ():
            _run(call, memory, machine, threads)
    memory.check()
    return memory


def separate(graph: OpGraph) -> OpGraph:
    """The function with a group for each node."""
    return graph.with_groups([Group((node,)) for node in graph.nodes()])


def prepared(calls: Sequence[Call], arrays: Mapping[str, np.ndarray]) -> Callable[[], None]:
    """What runs calls by one thread, again and again, on copies of arrays."""
    sizes = {"scratch": max(call.scratch for call in calls), SHARED: max(call.shared for call in calls)}
    memory = Memory(arrays | {name: np.zeros(size, np.uint8) for name, size in sizes.items()})
    functions = [KERNEL(_loaded(call.kernel, "host").address(call.kernel.name)) for call in calls]
    slots = [np.frombuffer(b"".join(_slot(each, memory) for each in call.arguments), np.uint8) for call in calls]

    def run() -> None:
        for function, given in zip(functions, slots, strict=True):
            function(given.ctypes.data, 0, 1, memory.address("scratch"))

    return run


def _run(call: Call, memory: Memory, machine: str, threads: int) -> None:
    run_call(call, _loaded(call.kernel, machine), memory, threads)


def run_call(call: Call, loaded: Loaded, memory: Memory, threads: int, *, backwards: bool = False) -> None:
    """Runs a call, thread after thread; `backwards` from the last one on."""
    function = KERNEL(loaded.address(call.kernel.name))
    slots = bytearray(b"".join(_slot(operand, memory) for operand in call.arguments))
    arguments = np.frombuffer(slots, np.uint8)
    for thread in reversed(range(threads)) if backwards else range(threads):
        scratch = Memory({"scratch": np.full(call.scratch, 0xFF, np.uint8)})  # NaN
        function(arguments.ctypes.data, thread, threads, scratch.address("scratch"))
        scratch.check()


def _slot(operand: Operand, memory: Memory) -> bytes:
    if isinstance(operand, float):
        return struct.pack("=d", operand)
    return struct.pack("=q", operand if isinstance(operand, int) else memory.address(operand.buffer) + operand.offset)


@cache
def _loaded(kernel: Kernel, machine: str) -> Loaded:
    own = MACHINES[machine]
    texts = zip(texts_of([kernel], own), (False, True), strict=True)
    return Loaded([compiled(text, own, vectorise=vectorise) for text, vectorise in texts], own)
