# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportArgumentType=false, reportCallIssue=false, reportReturnType=false
"""Runs a vmfb without torch: 64-byte aligned weights are used in place, states remain on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from bringup.adapters.checkpoints.arrays import bytes_of
from bringup.compile.program.bind_weights import check_weights, dtype_of
from bringup.compile.program.program import Interface, TensorSpec
from bringup.compile.targets.iree_memory import export_memory, free_released
from bringup.graphs.core.step import FIELDS

if TYPE_CHECKING:
    from iree.runtime import HalBufferView, HalElementType

_SCOPE = "model"


class IreeExecutor:
    """Executor of a compiled module; `device` is an IREE device URI such as "local-task"."""

    def __init__(
        self,
        vmfb: bytes,
        interface: Interface,
        weights: Mapping[str, np.ndarray],
        *,
        device: str = "local-task",
    ) -> None:
        import iree.runtime as rt

        check_weights(interface, weights)
        self._rt, self._interface = rt, interface
        self._device = rt.get_device(device)
        instance = rt.VmInstance()
        index = rt.ParameterIndex()
        free_released()
        for spec in interface.weights:
            index.add_buffer(spec.name, export_memory(bytes_of(weights[spec.name])))
        # Parameters must be registered before the module whose initialisers read them.
        modules = [
            rt.create_io_parameters_module(instance, index.create_provider(_SCOPE)),
            rt.create_hal_module(instance, self._device),
            rt.VmModule.copy_buffer(instance, vmfb),
        ]
        self._context = rt.VmContext(instance, modules)
        self._entries = {entry.name: entry for entry in interface.entries}
        self._functions = {name: modules[-1].lookup_function(name) for name in self._entries}
        self._states = {spec.name: self._zeros(spec) for spec in interface.states}

    def close(self) -> None:
        """Frees weights and states, as the end of the last reference does; see `program.Closeable`.

        Memory that a worker of IREE has not released yet is freed when the next executor is opened or closed.
        """
        self._states, self._functions, self._context = {}, {}, None
        free_released()

    def __del__(self) -> None:
        self.close()

    def step(self, entry: str, step: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs one entry; see `program.Executor`.

        An entry returns the states of sequences, updated in place: the returned views are those passed.
        """
        rt, wanted, changed = self._rt, self._entries[entry], self._interface.sequence_states
        args = rt.VmVariantList(len(self._states) + len(FIELDS) + len(wanted.inputs))
        results = rt.VmVariantList(len(wanted.outputs) + len(changed))
        for state in self._states.values():
            args.push_ref(state)
        for name in FIELDS:
            args.push_ref(self._upload(np.ascontiguousarray(step[name], dtype=np.int64), rt.HalElementType.INT_64))
        for spec in wanted.inputs:
            buffer = self._upload(bytes_of(step[spec.name]), rt.HalElementType.UINT_8).get_buffer()
            args.push_ref(rt.HalBufferView(buffer, spec.shape, _element(spec.dtype)))
        assert self._context, "the executor is closed"
        self._context.invoke(self._functions[entry], args, results)
        views = [results.get_as_object(i, rt.HalBufferView) for i in range(len(wanted.outputs) + len(changed))]
        self._states.update(zip((spec.name for spec in changed), views[len(wanted.outputs) :], strict=True))
        return {name: _download(view) for name, view in zip(wanted.outputs, views, strict=False)}

    def reset(self) -> None:
        """Zeroes the states of sequences."""
        for spec in self._interface.sequence_states:
            buffer = self._states[spec.name].get_buffer()
            buffer.fill_zero(0, buffer.byte_length())

    def states(self) -> dict[str, np.ndarray]:
        """A copy of every state, by name."""
        return {spec.name: _download(self._states[spec.name], spec.dtype) for spec in self._interface.states}

    def set_states(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites the states named."""
        for spec in self._interface.states:
            if spec.name in arrays:
                buffer = self._upload(bytes_of(arrays[spec.name]), self._rt.HalElementType.UINT_8).get_buffer()
                self._states[spec.name] = self._rt.HalBufferView(buffer, spec.shape, _element(spec.dtype))

    def write_slot(self, state: str, slot: int, row: np.ndarray) -> None:
        """Overwrites a row of a state; see `program.LoraExecutor`."""
        data = bytes_of(row)
        memory = self._states[state].map().asarray([len(data) * self._states[state].shape[0]], np.dtype(np.uint8))
        memory[slot * len(data) : (slot + 1) * len(data)] = data

    def _upload(self, array: np.ndarray, element: HalElementType) -> HalBufferView:
        rt = self._rt
        return self._device.allocator.allocate_buffer_copy(
            memory_type=rt.MemoryType.DEVICE_LOCAL,
            allowed_usage=rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING,
            device=self._device,
            buffer=array,
            element_type=element,
        )

    def _zeros(self, spec: TensorSpec) -> HalBufferView:
        rt, size = self._rt, dtype_of(spec.dtype).itemsize
        buffer = self._device.allocator.allocate_buffer(
            memory_type=rt.MemoryType.DEVICE_LOCAL,
            allowed_usage=rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING,
            allocation_size=math.prod(spec.shape) * size,
        )
        buffer.fill_zero(0, buffer.byte_length())
        return rt.HalBufferView(buffer, spec.shape, _element(spec.dtype))


_ELEMENTS = {
    "float32": "FLOAT_32",
    "float16": "FLOAT_16",
    "bfloat16": "BFLOAT_16",
    "int64": "INT_64",
    "int32": "INT_32",
    "int8": "SINT_8",
    "uint8": "UINT_8",
    "float8_e4m3fn": "FLOAT_8_E4M3_FN",
    "float8_e5m2": "FLOAT_8_E5M2",
}


def _element(dtype: str) -> HalElementType:
    import iree.runtime as rt

    return getattr(rt.HalElementType, _ELEMENTS[dtype])


def _download(view: HalBufferView, dtype_name: str = "") -> np.ndarray:
    """A copy on the host, bfloat16 as ml_dtypes.bfloat16."""
    names = {int(_element(name)): name for name in ("float32", "float16", "bfloat16")}
    dtype = dtype_of(dtype_name or names[int(view.element_type)])
    raw = view.map().asarray([math.prod(view.shape) * dtype.itemsize], np.dtype(np.uint8))
    return raw.copy().view(dtype).reshape(view.shape)
