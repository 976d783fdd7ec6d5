"""Device memory of an executor besides its kernels: the fields of a step, and an upper bound of the total."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bringup.compile.gpu.kernel_plan import KernelPlan
from bringup.compile.gpu.sampling import SLOTS
from bringup.compile.gpu.upload import CHUNK
from bringup.compile.kernels.select.sampling import SETTINGS
from bringup.compile.program.bind_weights import dtype_of
from bringup.compile.program.program import Entry, Interface, TensorSpec
from bringup.compile.schedule.schedule import Schedule
from bringup.graphs.core.step import FIELDS, step_shapes


def fields_of(entry: Entry, interface: Interface) -> list[TensorSpec]:
    """The fields of an entry point's step, with the longest block table, followed by its inputs."""
    shapes = step_shapes(entry.num_tokens, entry.num_sequences, interface.max_blocks)
    fields = [TensorSpec(name=name, shape=shapes[name], dtype="int64") for name in FIELDS]
    return [*fields, *entry.inputs]


def device_bytes(plan: KernelPlan, schedule: Schedule, interface: Interface, weights: Mapping[str, np.ndarray]) -> int:
    """An upper bound of the bytes that an executor allocates, with padding between allocations."""
    sizes = [weights[spec.name].nbytes for spec in interface.weights if spec.name in weights]
    sizes += [nbytes_of(spec) for spec in interface.states]
    sizes += [schedule.nbytes, plan.scratch, plan.global_scratch]
    for entry in interface.entries:
        sizes.append(sum(nbytes_of(spec) + 256 for spec in fields_of(entry, interface)))
        # Sampling settings, and tokens.
        sizes += [len(SETTINGS) * (8 * entry.num_sequences + 256), SLOTS * 8 * entry.num_sequences]
    return sum(size + 4096 for size in sizes) + CHUNK


def nbytes_of(spec: TensorSpec) -> int:
    """The bytes of a tensor."""
    return int(np.prod(spec.shape, dtype=np.int64)) * dtype_of(spec.dtype).itemsize
