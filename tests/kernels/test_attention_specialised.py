"""Attention of prompts on sm_90, whose warps have different tasks, under all checks of `bringup kernels test`."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("triton")

from bringup.compile.kernels.select import attention_calls
from bringup.compile.kernels.select.attention import attention
from bringup.compile.kernels.select.tiles import TALLEST
from tests.kernels.attention import Case, data_of
from tests.kernels.emulated import relative
from tests.kernels.graphs import NUMPY
from tests.kernels.shipped import built
from tests.kernels.tasks.attention import attended
from tests.kernels.test_attention import TOLERANCES

CAPABILITY = "sm_90"
FEW = 3  # multiprocessors, so that each program has several parts
WIDE = {"dtype": "bfloat16", "channels": 64, "heads": 2, "groups": 1}

CASES = {
    "ragged": Case(lengths=(300, 64), new=(170, 30), padding=20, blocks=5, **WIDE),
    "128 channels": Case(lengths=(140,), new=(140,), dtype="float16", channels=128, heads=2, groups=2),
    "one sequence": Case(lengths=(330,), new=(150,), blocks=6, contiguous=True, query_part=8, **WIDE),
    "many sequences": Case(
        lengths=(150, 9, 9, 260, 64, 20),
        new=(140, 0, 9, 131, 0, 1),
        padding=140,
        blocks=5,
        **WIDE | {"heads": 4, "groups": 2},
    ),
    "window": Case(lengths=(400,), new=(260,), blocks=7, window=70, **WIDE),
    "chunk": Case(lengths=(400,), new=(260,), blocks=7, window=70, chunked=True, **WIDE),
    "ring": Case(lengths=(500, 30), new=(140, 30), blocks=9, window=90, ring=320, has_sinks=True, **WIDE),
    "alibi": Case(lengths=(260,), new=(140,), blocks=5, has_slopes=True, **WIDE),
    "sinks": Case(lengths=(129,), new=(129,), has_sinks=True, **WIDE),
}


@pytest.fixture(autouse=True)
def few_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_calls, "PANELS", {CAPABILITY: FEW})


SLOW = {"many sequences", "ragged", "one sequence", "window", "chunk", "ring", "alibi", "sinks"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES])
def test_prompts(name: str) -> None:
    case = CASES[name]
    whole = built(attended(case), CAPABILITY)
    assert [call.kernel.stem for call in whole.calls] == ["hopper.attention_specialised"]
    seen, found = whole.run()
    assert seen.findings == []
    data = data_of(case)
    out = found["out"].view(NUMPY[case.dtype]).reshape(data.buffers["out"].shape)
    tokens = len(data.expected)
    assert relative(out[:tokens], data.expected) < TOLERANCES[case.dtype]
    assert not out[tokens:].any()


@pytest.mark.parametrize(
    ("case", "capability", "taken"),
    [
        (Case(lengths=(129,), new=(129,), query_part=8, **WIDE), "sm_90", True),
        (Case(lengths=(129,), new=(129,), query_part=4, **WIDE), "sm_90", False),  # rows of q begin at 8 bytes of 16
        (Case(lengths=(128,), new=(128,), **WIDE), "sm_90", False),
        (Case(lengths=(129,), new=(129,), **WIDE), "sm_80", False),
        (Case(lengths=(129,), new=(129,), **WIDE, values=128), "sm_90", False),
        (Case(lengths=(129,), new=(129,), **WIDE, softcap=3.0), "sm_90", False),
        (Case(lengths=(129,), new=(129,), **WIDE, has_chosen=True), "sm_90", False),
        (Case(lengths=(129,), new=(129,), **WIDE | {"dtype": "float32"}), "sm_90", False),
        (Case(lengths=(129,), new=(129,), **WIDE, cache="float16"), "sm_90", False),
        (Case(lengths=(129,), new=(129,), **WIDE | {"channels": 128}, ring=256), "sm_90", False),  # would spill
    ],
)
def test_what_it_supports(case: Case, capability: str, taken: bool) -> None:
    graph = data_of(case).graph
    calls = attention(graph, graph.groups[0], capability) or ()
    assert [call.kernel.stem for call in calls] == ["hopper.attention_specialised" if taken else "attention_prefill"]


def test_a_kernel_does_not_depend_on_where_triton_is() -> None:
    whole = built(attended(CASES["128 channels"]), CAPABILITY)
    (compiled,) = whole.compiled.values()
    folder = str(_triton().parent)
    assert "triton/language/standard.py" in compiled.assembly
    assert folder not in compiled.assembly
    assert folder.encode() not in compiled.binary


def _triton() -> Path:
    spec = find_spec("triton")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent


def test_exponentials_are_computed_while_products_run(tmp_path: Path) -> None:
    """In the machine code: ptxas may move them after the wait for the products."""
    whole = built(attended(CASES["128 channels"]), CAPABILITY)
    (compiled,) = whole.compiled.values()
    tool = _triton() / "backends" / "nvidia" / "bin" / "nvdisasm"
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiled.binary)
    code = subprocess.run([tool, "-c", file], capture_output=True, text=True, check=True).stdout
    (running,) = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1 (.*?)WARPGROUP\.DEPBAR\.LE gsb0, 0x0 ", code, re.DOTALL)
    assert "HGMMA" not in running
    exponentials = TALLEST * TALLEST // (32 * whole.calls[0].kernel.num_warps)  # of the scores, for each thread
    assert running.count("MUFU.EX2") >= exponentials * 9 // 10
