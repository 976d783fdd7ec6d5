"""Attention kernels, as selectors choose them, on the PTX emulator against float64."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pytest

from bringup.compile.cache.store import default_store
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.call import Kernel, KernelCall
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.kernels.select.attention import attention
from tests.kernels.attention import Case, Data, data_of
from tests.kernels.emulated import Emulated, relative, steps_of

# Results are rounded to their dtype; 16-bit shares of values are too, before they are multiplied.
TOLERANCES = {"float32": 2e-6, "bfloat16": 4e-3, "float16": 6e-4}

CASES = {
    "decode": Case(lengths=(77,)),
    "decode_contiguous": Case(lengths=(150,), contiguous=True, query_part=5),
    "decode_one_key": Case(lengths=(1,)),
    "decode_batch": Case(lengths=(1, 64, 65, 130), heads=6, groups=2),
    "decode_one_group": Case(lengths=(100,), heads=20, groups=1, channels=24, values=40),
    "decode_many_heads": Case(lengths=(66, 190), heads=3, groups=3, channels=8),
    "decode_window": Case(lengths=(20, 64, 150), window=33),
    "decode_ring": Case(lengths=(20, 64, 150, 500), window=50, ring=128, blocks=8),
    "decode_chunk": Case(lengths=(20, 151, 200), window=50, chunked=True, ring=128, blocks=4),
    "decode_sinks": Case(lengths=(70, 3), has_sinks=True),
    "decode_alibi": Case(lengths=(70, 140), has_slopes=True),
    "decode_softcap": Case(lengths=(70,), softcap=3.0),
    "decode_chosen": Case(lengths=(70, 130), has_chosen=True),
    "decode_long": Case(lengths=(1100, 40), blocks=18, heads=2, groups=1, channels=80),
    "decode_bfloat16": Case(lengths=(77, 130), dtype="bfloat16", channels=64),
    "decode_float16": Case(lengths=(77, 130), dtype="float16", channels=96, heads=3, groups=3),
    "decode_mixed": Case(lengths=(77, 130), dtype="float32", cache="bfloat16"),
    "decode_oss": Case(lengths=(300, 20), dtype="bfloat16", heads=16, channels=64, window=40, ring=64, has_sinks=True),
    "prefill": Case(lengths=(37,), new=(37,)),
    "prefill_one_token": Case(lengths=(1,), new=(1,), padding=31),
    "prefill_contiguous": Case(lengths=(100,), new=(40,), contiguous=True, query_part=8, padding=3),
    "prefill_ragged": Case(lengths=(5, 64, 33), new=(5, 64, 33), padding=26, heads=3, groups=3, channels=8),
    "prefill_later": Case(lengths=(70, 130, 64), new=(6, 66, 1)),
    "prefill_empty": Case(lengths=(9, 9, 9), new=(9, 9, 9), padding=5, heads=2, groups=1, channels=24, values=40),
    "prefill_window": Case(lengths=(70, 130), new=(70, 40), window=17),
    "prefill_ring": Case(lengths=(300, 30, 129), new=(20, 30, 3), window=50, ring=128, blocks=5),
    "prefill_chunk": Case(lengths=(300, 30, 129), new=(20, 30, 3), window=50, chunked=True, ring=128, blocks=5),
    "prefill_sinks": Case(lengths=(70, 3), new=(70, 3), has_sinks=True),
    "prefill_alibi": Case(lengths=(70, 140), new=(30, 40), has_slopes=True),
    "prefill_softcap": Case(lengths=(70,), new=(70,), softcap=3.0),
    "prefill_chosen": Case(lengths=(70, 130), new=(30, 40), has_chosen=True),
    "prefill_wide": Case(lengths=(70,), new=(20,), channels=256, heads=2, groups=1),
    "prefill_bfloat16": Case(lengths=(130, 64), new=(130, 30), dtype="bfloat16", channels=64),
    "prefill_float16": Case(lengths=(130, 64), new=(130, 30), dtype="float16", channels=96, heads=3, groups=3),
    "prefill_in_parts": Case(lengths=(70, 33), new=(40, 33), channels=96, heads=2, groups=1),
    "prefill_mixed": Case(lengths=(70,), new=(70,), dtype="bfloat16", cache="float16"),
    "prefill_oss": Case(lengths=(300,), new=(70,), dtype="bfloat16", heads=8, window=40, ring=128, has_sinks=True),
}  # fmt: skip
# On sm_80 too: one of each kernel, what the matrix units multiply, and a tile of another size. Masks and tables are
# lowered alike on both.
ON_SM_80 = {"decode": (), "prefill_bfloat16": (), "prefill_wide": ()} | dict.fromkeys(
    ("prefill", "prefill_float16", "prefill_oss", "decode_bfloat16", "decode_float16", "decode_oss"), pytest.mark.slow
)
# What another case computes too, with more next to it, or what the other of decode and prefill shows.
SHOWN = {
    *("decode_one_group", "decode_many_heads", "decode_window", "decode_sinks", "decode_alibi", "decode_chosen"),
    *("decode_float16", "decode_mixed", "decode_softcap", "decode_long", "prefill_alibi", "prefill_in_parts"),
    *("prefill_mixed", "prefill_one_token", "prefill_window", "prefill_sinks", "prefill_softcap"),
}
PAIRS = [
    *(pytest.param(name, "sm_90", marks=pytest.mark.slow if name in SHOWN else ()) for name in CASES),
    *(pytest.param(name, "sm_80", marks=marks) for name, marks in ON_SM_80.items()),
]


def call_of(data: Data, capability: str) -> KernelCall:
    calls = attention(data.graph, data.graph.groups[0], capability)
    assert calls is not None
    (call,) = calls
    return call


@pytest.fixture(scope="module")
def compiled(request) -> Mapping[tuple[Kernel, str], Compiled]:
    """The kernels of the tests that run, compiled together."""
    items = [item for item in request.session.items if item.path == request.path]
    selected = [item.callspec.params for item in items if hasattr(item, "callspec")]
    found: dict[tuple[Kernel, str], Compiled] = {}
    for capability in {params["capability"] for params in selected}:
        names = {params["name"] for params in selected if params["capability"] == capability}
        kernels = [call_of(data_of(CASES[name]), capability).kernel for name in sorted(names)]
        results = compile_kernels(kernels, capability, default_store())
        found |= {(kernel, capability): result for kernel, result in results.items()}
    return found


@pytest.mark.parametrize(("name", "capability"), PAIRS)
def test_attention_is_that_of_float64(name, capability, compiled):
    case = CASES[name]
    data = data_of(case)
    call = call_of(data, capability)
    for copies, seed in steps_of([1]):
        memory = Emulated(data.buffers, call.scratch)
        memory.run(call, compiled[call.kernel, capability], copies=copies, seed=seed)
        found = memory.read("out")
        rows = len(data.expected)
        assert relative(found[:rows], data.expected) < TOLERANCES[case.dtype]
        assert not np.asarray(found[rows:], np.float64).any()  # padding


def test_the_first_tile_is_an_operand_before_the_wait() -> None:
    """In a decode launch that starts early: only products and the newest key are left after its wait."""
    call = call_of(data_of(CASES["decode_bfloat16"]), "sm_90")
    text = compile_kernels([call.kernel], "sm_90", default_store())[call.kernel].assembly
    before, wait, after = text.partition("griddepcontrol.wait")
    assert wait
    fetch, product = re.compile(r"ld\.global\.v4"), re.compile(r"mma\.sync")
    loads = len(fetch.findall(before))
    first = after[: product.search(after).start()]
    assert loads > 1
    assert not fetch.findall(first)
    for kind in ("m8n8.x4.shared", "m8n8.x4.trans.shared"):
        assert kind in before
