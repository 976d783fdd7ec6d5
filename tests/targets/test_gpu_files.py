"""Files of a bundle with kernels that are not what `bringup compile` wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bringup.compile.runtime.kernel_trial import trial_of
from bringup.compile.runtime.session import load
from bringup.compile.targets.registry import find
from bringup.diagnostics import BringupError


@pytest.mark.parametrize("change", ["cubin", "ptx", "calls", "pointer"])
def test_files_that_are_none(gpu_bundle, tmp_path, change: str) -> None:
    folder = shutil.copytree(gpu_bundle, tmp_path / "wrong")
    plan = json.loads((folder / "kernels.json").read_text("utf-8"))
    if change == "cubin":
        file = next((folder / "cubins").iterdir())
        file.unlink()
        file.write_bytes(b"other")
    elif change == "ptx":
        for file in (folder / "ptx").iterdir():
            text = file.read_text("utf-8")
            file.unlink()
            file.write_text(text.replace("add.rn.f32", "sub.rn.f32").replace("add.f32", "sub.f32"))
    elif change == "calls":
        plan["calls"].popitem()
    else:
        next(iter(plan["calls"].values()))[0][0]["arguments"][0] = ["nothing", 0]
    (folder / "kernels.json").unlink()
    (folder / "kernels.json").write_text(json.dumps(plan))
    with pytest.raises(BringupError, match="BU603"):
        load(folder, "emulate")
    if change != "cubin":
        with pytest.raises(BringupError, match="BU603"):
            trial_of(folder)


FIRST_CALL: dict[str, object] = {
    "grid": [10**12, 1, 1],
    "kernel": -1,
    "scratch": -5,
    "arguments": [["scratch", -(10**19)]],
}
FIRST_KERNEL: dict[str, object] = {
    "name": 5,
    "digest": 5,
    "shared": 1.5,
    "num_warps": 10**9,
    "warp_size": 2.5,
    "types": [1, 1, 1, 1, 1, 1, 1],
    "global_scratch_size": 10**15,
    "global_scratch_align": 512,
}


def damaged(bundle: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a bundle with another `kernels.json`."""
    shutil.copytree(bundle, folder)
    plan = json.loads((folder / "kernels.json").read_text("utf-8"))
    change(plan)
    (folder / "kernels.json").unlink()
    (folder / "kernels.json").write_text(json.dumps(plan))
    return folder


def first_call(plan: dict[str, Any]) -> dict[str, Any]:
    return next(iter(plan["calls"].values()))[0][0]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    **{f"call {name}": lambda plan, n=name, v=v: first_call(plan).update({n: v}) for name, v in FIRST_CALL.items()},
    **{f"{name}": lambda plan, n=name, v=v: plan["kernels"][0].update({n: v}) for name, v in FIRST_KERNEL.items()},
    "constants": lambda plan: plan["kernels"][0]["kernel"].update(constants=[["a", [1]]]),
    "twice": lambda plan: plan["kernels"][1].update(kernel=plan["kernels"][0]["kernel"]),
    "target": lambda plan: plan.update(target="sm_"),
    "kernels": lambda plan: plan.update(kernels=5),
    "past scratch": lambda plan: [
        call.update(scratch=512, arguments=[["scratch", 512], *call["arguments"][1:]])
        for groups in plan["calls"].values()
        for call in groups[0][:1]
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_plan(gpu_bundle, tmp_path, change: str) -> None:
    """BU603 from both that read one."""
    folder = damaged(gpu_bundle, tmp_path / "wrong", CHANGES[change])
    for read in (lambda: load(folder, "emulate"), lambda: trial_of(folder)):
        with pytest.raises(BringupError, match=r"BU603.*`kernels.json`"):
            read()


def test_an_architecture_that_is_not_emulated(gpu_bundle, tmp_path) -> None:
    """`emulate` is no device of its target, and `bringup kernels test` says why."""
    assert list(find("cuda:sm_100").target.devices()) == ["gpu", "reference"]
    folder = shutil.copytree(gpu_bundle, tmp_path / "other")
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text(json.dumps(manifest | {"target": "cuda:sm_100"}))
    with pytest.raises(BringupError, match=r"BU018: a cuda:sm_100 bundle has no executor `emulate`"):
        load(folder, "emulate")
    with pytest.raises(BringupError, match=r"BU018: the emulator does not run kernels for cuda:sm_100"):
        trial_of(folder)
