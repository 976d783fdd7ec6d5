"""Caches of more than 2^31 elements: rows behind that are read, in blocks that the table names."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from bringup.compile import ptx
from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import Pointer
from bringup.graphs.core.step import BLOCK
from tests.kernels.attention import Case, data_of
from tests.kernels.emulated import Emulated, relative
from tests.kernels.test_attention import TOLERANCES, call_of

FIRST = (1 << 31) // (2 * 128 * BLOCK) + 3  # a block whose rows, of two heads of 128 channels, are past 2^31 elements


@pytest.mark.slow
@pytest.mark.parametrize("new", [(), (5,)])
def test_rows_past_two_to_the_31_elements(new):
    case = Case(lengths=(100,), new=new, blocks=2, dtype="bfloat16", channels=128)
    data = data_of(case)
    call = call_of(data, "sm_90")
    compiled = compile_kernels([call.kernel], "sm_90", default_store())[call.kernel]
    near = {name: array for name, array in data.buffers.items() if name not in ("k", "v")}
    table = near["step:block_table"]
    size = 2 * 128 * BLOCK * 2  # bytes of a block
    memory = Emulated(
        near | {"step:block_table": table + FIRST}, call.scratch, nbytes=(FIRST + 8) * size * 2 + (1 << 24)
    )
    for name in ("k", "v"):
        memory.places[name] = memory.device.alloc((FIRST + 4) * size, name)
        memory.device.write(memory.places[name] + FIRST * size, data.buffers[name])
    arguments = [memory.packed(kind, value) for kind, value in zip(call.kernel.types, call.arguments, strict=True)]
    nothing = memory.packed("*i8", 0)
    assert Pointer("k") in call.arguments
    program = ptx.Program(compiled.assembly)
    program.launch(memory.device, call.grid, [*arguments, nothing, nothing], shared=compiled.shared)
    found = np.asarray(memory.read("out"), np.float64)
    assert relative(found, data.expected) < TOLERANCES["bfloat16"]
    assert data.buffers["k"].dtype == ml_dtypes.bfloat16
