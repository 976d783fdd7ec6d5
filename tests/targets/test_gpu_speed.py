"""benchmarks/gpu.py: its part of speed, with tiny models, the emulated driver and torch on the processor.

What is measured has no meaning here. That each line runs, and what is in a row, can be seen without a card.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu, step_parts, tune_step
from benchmarks.cards import contenders, speed
from benchmarks.cards.rows import Row, save
from bringup.compile.gpu.emulated_driver.driver import EmulatedDriver
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.runtime.session import Session, load

SETTINGS = {"vocab_size": 97, "n_embd": 24, "n_head": 3, "n_positions": 32, "n_layer": 1}
PROMPT, SHORT, LONG, ROUNDS = 8, 1, 3, 2
DECODE = Row(name="tiny", kind="gpt2", prompt=PROMPT, goal=1, settings=SETTINGS)
PREFILL = Row(name="tiny, prefill", kind="gpt2", prompt=PROMPT, goal=1, settings=SETTINGS)


class Event:
    """torch.cuda.Event on the host's clock."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return (end.seconds - self.seconds) * 1e3


def compiled(forward: Callable[..., Any], *, mode: str, fullgraph: bool, dynamic: bool) -> Callable[..., Any]:
    """torch.compile with the settings that METHOD.md names; it leaves the function as it is."""
    assert (mode, fullgraph, dynamic) == ("max-autotune", True, False)
    return forward


def emulated(bundle: Path, executor: str) -> Session:
    assert executor == "gpu"
    return load(bundle, "emulate")


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything that a card has, on the processor."""
    for module in (speed, contenders):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    sizes = {"SHORT": SHORT, "LONG": LONG, "ROUNDS": ROUNDS, "COPIED": 1 << 16, "PRODUCT": 32}
    rows = {"TIMED": (DECODE,), "PREFILL": PREFILL}
    for name, value in (sizes | rows).items():
        monkeypatch.setattr(speed, name, value)
    for name, value in rows.items():
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr(gpu, "driver_module", lambda: EmulatedDriver({}, (9, 0), 1 << 16))
    monkeypatch.setattr(contenders, "load", emulated)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "compile", compiled)
    yield
    torch.set_grad_enabled(True)  # transformers' contender needs none


@pytest.mark.slow
@pytest.mark.usefixtures("no_card")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_row_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decode and prefill by all contenders; then decode where torch.compile fails, which ends no row."""
    assert gpu.main(["--part", "speed", "--out", str(tmp_path / "found")]) == 0
    results = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert results["device"] == "PTX on the CPU, sm_90"
    assert results["about"]["CUDA driver"] == "13.0"
    decode, prefill = results["speed"]
    assert (decode["row"], decode["what"]) == ("tiny", "decode")
    assert (prefill["row"], prefill["what"]) == ("tiny, prefill", "prefill")
    assert set(decode["us"]) == {"bringup", "transformers", "torch.compile"}
    assert set(prefill["us"]) == {"bringup", "transformers"}
    for row in (decode, prefill):
        assert row["failed"] == {}
        assert all(len(times["all"]) == ROUNDS for times in row["us"].values())
        assert row["equal tokens"]["bringup"] == LONG
        limits = {name: row[name] for name in ("read GB/s", "copy GB/s", "bf16 TFLOP/s")}
        assert row["floor us"] == pytest.approx(speed.floor_of(row, limits))
        assert row["compile seconds"] > 0 < row["bundle to first token seconds"]
    assert decode["launches"] == 5 + 2 + 1  # one layer, embedding and head, and one that draws
    weights = 2 * (12 * 24**2 + 97 * 24)  # bytes of the matrices, of which the head is the embedding's
    assert weights < decode["read"] < 2 * weights
    assert prefill["flops"] > 4 * decode["flops"]
    text = (tmp_path / "found.md").read_text("utf-8")
    assert text == capsys.readouterr().out[:-1]
    assert "not run" not in text

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", fails)
    monkeypatch.setattr(speed, "ROUNDS", 1)
    (row,) = speed.rows("sm_90", ["tiny"], 60.0)
    assert row["failed"] == {"torch.compile": "RuntimeError: no compiler"}
    assert set(row["us"]) == {"bringup", "transformers"}


@pytest.mark.slow
@pytest.mark.usefixtures("no_card")
def test_the_parts_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row that samples gives the session's tokens, whatever its graphs are, and none disturbs the session."""
    monkeypatch.setattr(step_parts, "STEPS", 4)
    monkeypatch.setattr(step_parts, "TOGETHER", (2,))
    row = replace(DECODE, settings=SETTINGS | {"tie_word_embeddings": False})  # else each token is the one before
    save(row, str(tmp_path / "checkpoint"), "bfloat16", "cpu")
    ours = contenders.Bringup(tmp_path / "checkpoint", tmp_path / "bundle", "sm_90", PROMPT, 4 + step_parts.FIRST)
    with ours.session:
        expected = ours.tokens(1 + 4)
        assert len(set(expected)) > 2
        parts = step_parts.Parts(ours)
        times: dict[str, list[float]] = {}
        for name, row in parts.rows().items():
            times[name] = [row()]
            if name.startswith("sampled"):
                slot = 1 if "host waits" in name else 0
                assert parts.draws.tokens(slot, 1) == expected[-1:], name
        assert ours.tokens(1 + 4) == expected
        early: list[bool] = []
        launch = parts._driver.launch
        monkeypatch.setattr(
            parts._driver, "launch", lambda *given, **named: early.append(named["early"]) or launch(*given, **named)
        )
        parts.graph([parts._ready.draw_starts[0]] * 2)
        assert early == 2 * [False, *[True] * (len(early) // 2 - 1)]
    assert all(times[name][0] > 0 for name in times if name != "a session")  # of four steps, that is a difference
    assert len(step_parts.table(times).splitlines()) == 2 + len(times) == 9


@pytest.mark.slow
@pytest.mark.usefixtures("no_card")
@pytest.mark.parametrize("entry", ["decode", f"prefill_{PROMPT}"])
def test_tiles_are_tuned_within_a_step(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step with other tiles of one kernel has the same logits."""
    save(DECODE, str(tmp_path / "checkpoint"), "bfloat16", "cpu")
    ours = contenders.Bringup(tmp_path / "checkpoint", tmp_path / "bundle", "sm_90", PROMPT, LONG)
    executor = ours.session.executor
    logits: list[np.ndarray] = []

    def compiled_for_the_emulator(kernels: Any, *options: Any) -> Any:
        found = compile_kernels(kernels, *options)
        for each in found.values():
            executor._driver._api._programs[hashlib.sha256(each.binary).hexdigest()] = each.assembly
        return found

    measure = tune_step.microseconds

    def measured(executor: Any, starts: Any, rounds: int = 1) -> float:
        array, address = executor._entries[entry].outputs["logits"]
        found = measure(executor, starts, rounds)
        executor._driver.copy_out(array.reshape(-1).view(np.uint8), address, executor._stream)
        executor._driver.wait(executor._stream)
        logits.append(array.astype(np.float32))
        return found

    few = {
        stem: [replace(choice, tiles=list(choice.tiles)[:: len(choice.tiles) // 2]) for choice in choices]
        for stem, choices in tune_step.CHOICES.items()
    }
    for name, value in {"CHOICES": few, "LEAST_PROGRAMS": 1, "REPLAYS": 1, "ROUNDS": 1}.items():
        monkeypatch.setattr(tune_step, name, value)
    monkeypatch.setattr(tune_step, "compile_kernels", compiled_for_the_emulator)
    monkeypatch.setattr(tune_step, "microseconds", measured)
    with ours.session:
        ours.session.reset()
        ours.tokens(1 if entry != "decode" else LONG)
        tune_step.tuned(executor, entry, "sm_90", 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{entry}: ")
    kernels = {"linear", f"attention_{entry.partition('_')[0]}"} | ({"linear_tile"} if entry != "decode" else set())
    assert {line.split(",")[0].strip() for line in lines if "programs: " in line} == kernels
    assert len(logits) > 2 * len(kernels)
    assert all(np.abs(each - logits[0]).max() <= 2e-2 * np.abs(logits[0]).max() for each in logits)


def test_rounds_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round begins with another contender."""
    order: list[str] = []
    monkeypatch.setattr(speed, "ROUNDS", 3)
    work = {name: lambda name=name: order.append(name) or float(len(order)) for name in "abc"}
    assert speed.in_turns(work) == {"a": [1.0, 6.0, 8.0], "b": [2.0, 4.0, 9.0], "c": [3.0, 5.0, 7.0]}
    assert "".join(order) == "abcbcacab"
