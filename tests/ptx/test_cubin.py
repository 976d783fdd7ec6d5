"""What a cubin reports of itself agrees with the PTX it was assembled from."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from bringup.compile import ptx
from bringup.compile.ptx.hardware.cubin import kernels_of
from tests.ptx.cases import assembled


@pytest.mark.parametrize("target", [80, 90])
def test_parameters_and_block_size_are_those_of_the_ptx(target):
    text, image = assembled("rms_norm", target)
    kernel = ptx.Program(text).kernel
    (found,) = kernels_of(image).values()
    assert found.name == kernel.name == "rms_norm"
    assert found.parameters == [(each.offset, each.size) for each in kernel.parameters.values()]
    assert found.parameter_bytes == kernel.parameter_bytes
    assert found.block == (kernel.threads, 1, 1)
    assert 0 < found.registers <= 255


def test_other_files_are_refused():
    with pytest.raises(ValueError, match="not a cubin"):
        kernels_of(b"// PTX")
