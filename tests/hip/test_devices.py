"""Machines that cannot run a bundle for AMD's GPUs: an error each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bringup.compile.gpu.driver import hip_library
from bringup.compile.gpu.driver.hip import HipDriver
from bringup.compile.gpu.driver.hip_library import HipLibrary, found_library
from bringup.compile.runtime.session import load
from bringup.diagnostics import BringupError
from tests.hip.conftest import Started


def refusal(bundle: Path) -> str:
    """The error of a bundle that is opened."""
    with pytest.raises(BringupError) as caught:
        load(bundle)
    found = caught.value.findings[0]
    return f"{found.code}: {found.message}; {found.help}"


def test_no_library(rocm_bundles, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(hip_library, "NAME", "libnone.so")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    found = refusal(rocm_bundles("gpt2"))
    assert found.startswith("BU614: this machine has no HIP runtime")
    assert "--executor reference" in found


def test_no_device(rocm_bundles, started: Started) -> None:
    runtime = started(None)
    runtime.count = 0
    assert refusal(rocm_bundles("gpt2")).startswith("BU614: the HIP runtime finds no GPU")


def test_another_architecture(rocm_bundles, started: Started) -> None:
    runtime = started(None, "gfx90a:sramecc+:xnack-")
    found = refusal(rocm_bundles("gpt2"))
    assert found.startswith("BU615: the bundle is for gfx942, the GPU `AMD emulated` is gfx90a")
    assert "`rocm:gfx90a`; HIP_VISIBLE_DEVICES=N selects another GPU" in found
    assert "hipMalloc" not in runtime.calls


def test_a_runtime_that_is_too_old(rocm_bundles, started: Started) -> None:
    runtime = started(None)
    runtime.release = 5, 7
    found = refusal(rocm_bundles("gpt2"))
    assert found.startswith("BU616: the kernels need HIP 6.0, the runtime is of HIP 5.7; update ROCm to 6.0")
    assert runtime.calls == ["hipRuntimeGetVersion"]


def test_too_little_memory(rocm_bundles, started: Started) -> None:
    runtime = started(rocm_bundles("gpt2"), nbytes=1 << 14)
    assert refusal(rocm_bundles("gpt2")).startswith("BU618: out of device memory: hipMalloc returned hipErrorOut")
    assert runtime.calls.count("hipFree") == runtime.calls.count("hipMalloc") - 1


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("types", lambda types: [{"fp32": "fp64"}.get(each, each) for each in types], "argument 6 of"),
        ("num_warps", lambda warps: 2 * warps, "the hsaco has blocks of 256 threads, wavefronts of 64"),
        ("name", lambda name: f"{name}_2", "the kernel `attention_prefill`, not `attention_prefill_2`"),
    ],
    ids=["types", "warps", "name"],
)
def test_an_hsaco_that_takes_something_else(rocm_bundles, started: Started, tmp_path, field, value, problem) -> None:
    folder = shutil.copytree(rocm_bundles("gpt2"), tmp_path / "changed")
    plan = json.loads((folder / "kernels.json").read_text("utf-8"))
    kernel = next(each for each in plan["kernels"] if each["name"] == "attention_prefill")
    kernel[field] = value(kernel[field])
    (folder / "kernels.json").write_text(json.dumps(plan))
    runtime = started(rocm_bundles("gpt2"))
    found = refusal(folder)
    assert found.startswith("BU603")
    assert problem in found
    assert "hipMalloc" not in runtime.calls


def test_a_driver_that_is_closed(started: Started) -> None:
    runtime = started(None)
    library = found_library()
    assert library is not None
    driver = HipDriver(HipLibrary(library))
    assert (driver.name, driver.version, driver.architecture) == ("AMD emulated", (7, 1), "gfx942")
    assert driver.shared_limit == 65_536
    driver.close()
    with pytest.raises(BringupError, match="BU617: the executor is closed"):
        driver.use()
    assert "hipSetDevice" in runtime.calls
