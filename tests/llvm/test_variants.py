"""Kernels of each instruction set: those that run here against float64, and object files of all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from llvmlite import binding

from bringup.compile.llvm.ir import machine
from bringup.compile.llvm.ir.machine import Machine
from bringup.compile.llvm.module import compiled, texts_of
from bringup.compile.llvm.select.registry import calls_of
from bringup.compile.schedule.graph.op_graph import OpGraph
from tests.kernels.graphs import far
from tests.llvm.native import MACHINES, VARIANTS
from tests.llvm.products import Product
from tests.llvm.test_products import CASES, function_of

FORMS = ("q4_0", "q4_1", "q4_k", "int4", "int4-128", "mxfp4", "int8-groups", "q6_k")
PRODUCTS = ("one_row_bfloat16", "few_rows_bfloat16", "large_rows", "tiles_bfloat16", "tiles_float16")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("activations", ["", "int8"])
@pytest.mark.parametrize("form", FORMS)
def test_packed_products(form: str, activations: str, machine: str) -> None:
    """Blocks that are no multiple of eight, so that the last ones are read together with others, or one by one."""
    for channels in (256, 32 * 19 if form in ("q4_0", "q4_1", "int4", "mxfp4") else 512):
        Product(form, 1, channels=channels, activations=activations).check(machine)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("form", ["q4_0", "mxfp4", "int4-128"])
def test_largest_codes_and_numbers(form: str, machine: str) -> None:
    """All of one sign: whole numbers come as near to an overflow as they can."""
    for size in (1.0, 127 / 64, float(np.nextafter(np.float32(127 / 64), np.float32(0)))):
        product = Product(form, 1)
        product.f.arrays["w.codes"].view(np.uint32)[:] = 0x77777777 if form == "mxfp4" else 0xFFFFFFFF
        product.f.arrays |= {"x": np.full((1, 256), size, np.float32), "b": np.zeros(48, np.float32)}
        other = Product(form, 1)
        other.f.arrays |= product.f.arrays | {"x": np.full((1, 256), -size, np.float32)}
        found, negative = product.found(machine), other.found(machine)
        assert far(negative, -found) <= 1e-7
        one = Product(form, 1)
        one.f.arrays |= product.f.arrays | {"x": np.eye(1, 256, dtype=np.float32)}
        parts = list[np.ndarray]()
        for column in range(0, 256, 32):
            one.f.arrays["x"] = np.zeros((1, 256), np.float32)
            one.f.arrays["x"][0, column] = 1.0
            parts.append(one.found(machine).astype(np.float64))
        assert far(found, 32 * size * np.sum(parts, 0)) <= 2e-6


@pytest.mark.skipif(not VARIANTS, reason="the names are those of x86")
def test_features_that_a_virtual_machine_hides_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's name of the processor implies them: sapphirerapids has products of float16."""
    reported = dict.fromkeys(VARIANTS["avx512vnni"].features, True) | {"avx512fp16": False, "avx512bf16": False}
    hiding = replace(VARIANTS["avx512vnni"], cpu="sapphirerapids")
    monkeypatch.setattr(machine, "_reported", lambda: reported)
    with_all, hidden = (_squares(hiding, as_host, monkeypatch) for as_host in (VARIANTS["avx2"], hiding))
    assert "vmulph" in with_all
    assert "vmulph" not in hidden
    assert "zmm" in hidden


def _squares(target: Machine, as_host: Machine, monkeypatch: pytest.MonkeyPatch) -> str:
    """The assembly of a product of float16 vectors."""
    monkeypatch.setattr(machine, "host", lambda: as_host)
    body = "%x = load <32 x half>, ptr %p %y = fmul <32 x half> %x, %x store <32 x half> %y, ptr %p ret void"
    module = binding.parse_assembly(f"define void @f(ptr %p) {{ {body} }}")
    return target.target_machine().emit_assembly(module)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_compiles(variant: str) -> None:
    """Also for instructions that this processor has not."""
    machine = VARIANTS[variant]

    def size(graph: OpGraph) -> int:
        calls = calls_of(graph, graph.groups[0], machine)
        assert calls is not None
        return len(compiled(texts_of([call.kernel for call in calls], machine)[0], machine, vectorise=False))

    assert all(size(function_of(CASES[name]).graph("y")) > 0 for name in PRODUCTS)
    for form in ("q4_1", "mxfp4", "int8-groups"):
        assert all(size(Product(form, 1, activations=each).f.graph("y")) > 0 for each in ("", "int8"))
