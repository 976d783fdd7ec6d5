"""Bundles for AMD's GPUs run through HIP's runtime library: an emulated one, with the PTX of the same kernels."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from bringup.cli.main import cli
from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.gpu.profile import totals
from bringup.compile.runtime.session import Session, load
from bringup.diagnostics import BringupError
from tests.hip.conftest import BUNDLES, FEATURES, Started
from tests.hip.emulated_runtime import EmulatedHip
from tests.schedule.models import greedy

PROMPTS = ([1, 2, 3], list(range(14, 34)))
NEW = 6


def tokens_of(session: Session) -> list[list[int]]:
    """Of each prompt, greedy."""
    return greedy(session, PROMPTS, NEW)


@pytest.fixture(params=["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def opened(request, rocm_bundles, started) -> tuple[Path, EmulatedHip, Session]:
    bundle, architecture = rocm_bundles(request.param), BUNDLES[request.param]
    runtime = started(bundle, architecture + FEATURES[architecture])
    return bundle, runtime, load(bundle)


def test_the_runtime_gives_the_tokens_of_the_reference(opened) -> None:
    bundle, runtime, session = opened
    assert isinstance(session.executor, GpuExecutor)
    assert tokens_of(session) == tokens_of(load(bundle, "reference"))
    assert {each.block[0] % 64 for each in runtime.launches} == {0}
    for function in ("hipModuleLaunchKernel", "hipGraphLaunch", "hipStreamBeginCapture", "hipMemsetD8Async"):
        assert function in runtime.calls
    assert runtime.message == ""


def test_a_step_of_decode_is_one_graph_and_one_wait(opened) -> None:
    _, runtime, session = opened
    list(session.generate([1, 2, 3], max_new_tokens=4))
    runtime.calls.clear()
    list(session.generate([4, 5, 6], max_new_tokens=4))
    assert runtime.calls.count("hipModuleLaunchKernel") < runtime.calls.count("hipGraphLaunch") * len(runtime.launches)
    after = runtime.calls[runtime.calls.index("hipGraphLaunch") :]
    assert "hipModuleLaunchKernel" not in after
    assert after.count("hipStreamSynchronize") + after.count("hipEventSynchronize") <= after.count("hipGraphLaunch")


def test_everything_is_given_back(opened) -> None:
    _, runtime, session = opened
    list(session.generate([1, 2, 3], max_new_tokens=3))
    assert runtime._sizes
    assert isinstance(session.executor, GpuExecutor)
    session.executor.close()
    given = ("hipMalloc", "hipHostMalloc", "hipModuleLoadData", "hipStreamCreateWithFlags", "hipEventCreateWithFlags")
    back = ("hipFree", "hipHostFree", "hipModuleUnload", "hipStreamDestroy", "hipEventDestroy")
    assert list(map(runtime.calls.count, given)) == list(map(runtime.calls.count, back))
    assert runtime.calls.count("hipGraphInstantiateWithFlags") == runtime.calls.count("hipGraphExecDestroy") > 0
    assert runtime.calls.count("hipStreamEndCapture") == runtime.calls.count("hipGraphDestroy")
    assert not runtime._sizes


def test_states_pass_through_the_device(opened) -> None:
    executor = opened[2].executor
    given = {name: np.full_like(array, 3) for name, array in executor.states().items()}
    executor.set_states(given)
    assert all((array == 3).all() for array in executor.states().values())
    executor.reset()
    assert not any(array.any() for array in executor.states().values())


def test_a_profile_measures_each_launch(opened) -> None:
    _, runtime, session = opened
    assert isinstance(session.executor, GpuExecutor)
    profile = session.executor.start_profile()
    list(session.generate([1, 2, 3], max_new_tokens=2))
    assert len(profile.measured) == len(runtime.launches)
    assert all(each.seconds > 0 for each in totals(profile))


def test_the_command_runs_a_bundle(rocm_bundles, started, capsys) -> None:
    runtime = started(rocm_bundles("gpt2"))
    wanted = tokens_of(load(rocm_bundles("gpt2"), "reference"))[0]
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(rocm_bundles("gpt2")), "--tokens", "1,2,3", "--max-new-tokens", str(NEW)])
    assert ended.value.code == 0
    assert re.findall(r"\d+", capsys.readouterr().out) == [*map(str, wanted)]
    assert "hipGraphLaunch" in runtime.calls


def test_a_kernel_that_leaves_its_memory_ends_the_run(rocm_bundles, started: Started, tmp_path) -> None:
    """A weight that begins 64 bytes late: its last bytes are no longer in its memory."""
    folder = shutil.copytree(rocm_bundles("gpt2"), tmp_path / "late")
    plan = json.loads((folder / "kernels.json").read_text("utf-8"))
    calls = (call for group in plan["calls"]["decode.layer0"] for call in group)
    call = next(call for call in calls if ["attn.c_attn.weight", 0] in call["arguments"])
    call["arguments"][call["arguments"].index(["attn.c_attn.weight", 0])] = ["attn.c_attn.weight", 64]
    (folder / "kernels.json").write_text(json.dumps(plan))
    runtime = started(folder)
    session = load(folder)
    with pytest.raises(BringupError, match=r"BU617: hip\w+ returned hipErrorIllegalAddress: linear: out of bounds"):
        list(session.generate([1, 2, 3], max_new_tokens=2))
    assert "linear" in runtime.message
