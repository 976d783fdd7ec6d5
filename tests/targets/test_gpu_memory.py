"""Sessions and batches on a device: what they hold, when they give it back, and in which thread they work."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bringup.compile.gpu.emulated_driver.driver import EmulatedDriver
from bringup.compile.gpu.emulated_driver.queues import Happening
from bringup.compile.gpu.states import States
from bringup.compile.runtime.batch import load_batch
from bringup.compile.runtime.session import load
from bringup.diagnostics import BringupError


def drivers_of(monkeypatch: pytest.MonkeyPatch) -> list[EmulatedDriver]:
    """The emulated drivers that are opened from now on."""
    found: list[EmulatedDriver] = []
    init = EmulatedDriver.__init__

    def noted(self: EmulatedDriver, *arguments: Any) -> None:
        init(self, *arguments)
        found.append(self)

    monkeypatch.setattr(EmulatedDriver, "__init__", noted)
    return found


def held(emulated: EmulatedDriver) -> int:
    return len(emulated._handles) + len(emulated._sizes) + len(emulated._host)


@pytest.mark.parametrize(
    "end", [*(pytest.param(end, marks=pytest.mark.slow) for end in ("close", "garbage")), "with", "batch", "failure"]
)
def test_the_device_gets_everything_back(gpu_bundle, monkeypatch, end: str) -> None:
    drivers = drivers_of(monkeypatch)
    if end == "failure":
        monkeypatch.setattr(States, "zero", lambda self, names: self._driver.free(0))
        with pytest.raises(BringupError, match="BU617"):
            load(gpu_bundle, "emulate")
    elif end == "batch":
        with load_batch(gpu_bundle, "emulate"):
            assert held(drivers[0])
    else:
        session = load(gpu_bundle, "emulate")
        profile = session.executor.start_profile()
        for _ in range(2):
            list(session.generate([1, 2], max_new_tokens=2))
            events = sum(isinstance(each, Happening) for each in drivers[0]._handles.values())
            assert events == 0
        assert profile.measured
        assert held(drivers[0])
        if end == "with":
            with session:
                pass
        elif end == "close":
            session.close()
            session.close()
            with pytest.raises(BringupError, match="the executor is closed"):
                session.reset()
        del session
        gc.collect()
    assert held(drivers[0]) == 0


def test_a_session_goes_to_another_thread(gpu_bundle, monkeypatch) -> None:
    """No thread has another current context after it."""
    drivers = drivers_of(monkeypatch)
    session = load(gpu_bundle, "emulate")
    wanted = list(session.generate([1, 2, 3], max_new_tokens=3))

    def use() -> list[int]:
        session.executor.set_states(session.executor.states())
        found = list(session.generate([1, 2, 3], max_new_tokens=3))
        assert int(drivers[0].cuCtxGetCurrent()[1]) == 0
        session.close()
        return found

    assert int(drivers[0].cuCtxGetCurrent()[1]) == 0
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(use).result() == wanted
