"""benchmarks/gpu.py: its part of correctness in the emulator, and what it says without a card."""

from __future__ import annotations

import json
import math
from itertools import islice

import numpy as np
import pytest
import torch

from benchmarks import gpu
from benchmarks.cards import correctness, launches, speed
from benchmarks.cards.rows import CHECKED, DRY, TIMED, save
from benchmarks.cards.tables import markdown
from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from bringup.graphs.layers import sparse_indexer
from bringup.graphs.ops.topk_keys import top_keys
from tests.cuda.machine import has_gpu
from tests.models import family, parity

SMALL = correctness.Sizes((32,), 128, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_launch_is_compared(tmp_path, monkeypatch, capsys) -> None:
    """All of one model; a result that is off by a thousandth is past its limit."""
    monkeypatch.setattr(gpu, "DRY", DRY[1:])
    monkeypatch.setattr(correctness, "STEPS", 4)
    monkeypatch.setattr(correctness, "DRY", SMALL)
    assert gpu.main(["--dry-run", "--out", str(tmp_path / "found")]) == 0
    rows = json.loads((tmp_path / "found.json").read_text("utf-8"))["correctness"]
    kernels = {stem for row in rows for stem in row["kernels"].split(" + ")}
    assert kernels >= {"linear", "linear_tile", "elements", "attention_decode", "attention_prefill", "draw"}
    assert all((row["ok"] and row["error"] < row["limit"]) or row["error"] == 0 for row in rows)
    assert (tmp_path / "found.md").read_text("utf-8") == capsys.readouterr().out[:-1]
    exact = launches.in_float64
    monkeypatch.setattr(
        launches, "in_float64", lambda *given: {name: array * 1.001 for name, array in exact(*given).items()}
    )
    monkeypatch.setattr(correctness, "STEPS", 1)  # of tokens and steps enough are compared above
    steps = correctness.trial_steps
    monkeypatch.setattr(correctness, "trial_steps", lambda *given: islice(steps(*given), 1))
    wrong = list(correctness.rows(DRY[1:], "sm_90", "emulate", ("float32",), SMALL, math.inf))
    assert any(not row["ok"] for row in wrong)
    assert "Past their limit:\n\n- Llama, float32: " in markdown(
        {"device": "a card", "about": {}, "correctness": wrong}
    )


def test_the_indexer_leaves_keys_out_and_no_two_meet_where_it_does(tmp_path, monkeypatch) -> None:
    """Of equal scores transformers takes any: logits can be compared only where the last key that is kept is better
    than the first that is not. By transformers' own forward, and by ours without compiling."""
    model = next(each for each in CHECKED if each.name == "DeepSeek-V3.2")
    save(model, str(tmp_path / "checkpoint"), "float32", "cpu")
    count = model.longest + correctness.STEPS
    tokens = parity.random_tokens(count, model.settings["vocab_size"])
    gaps: list[float] = []

    def watched(scores_NL: torch.Tensor, positions_N: torch.Tensor, keep: int) -> torch.Tensor:
        for scores, last in zip(scores_NL, positions_N.tolist(), strict=True):
            falling = scores[: last + 1].sort(descending=True).values
            if last >= keep:
                gaps.append(float((falling[keep - 1] - falling[keep]) / falling.abs().max()))
        return top_keys(scores_NL, positions_N, keep)

    monkeypatch.setattr(sparse_indexer, "top_keys", watched)
    ours = family.eager_logits(open_job(checkpoint=str(tmp_path / "checkpoint")), tokens, model.longest)
    assert len(gaps) == model.settings["num_hidden_layers"] * (count - model.settings["index_topk"])
    assert min(gaps) > 1e-4
    wanted = parity.logits_of(parity.load_reference(tmp_path / "checkpoint"), tokens)
    assert parity.distance(ours, wanted).worst < 1e-5


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_without_a_card(capsys) -> None:
    assert gpu.main([]) == 2
    assert capsys.readouterr().err.startswith("BU614: this machine has no CUDA driver; `--dry-run`")


def test_results_are_written_to_a_new_folder(monkeypatch, tmp_path) -> None:
    """Both files, whatever dots the path has."""
    row = {"model": "M", "dtype": "float32", "not run": "no time", "ok": True}
    monkeypatch.setattr(correctness, "rows", lambda *_: iter([row]))
    assert gpu.main(["--dry-run", "--out", str(tmp_path / "new" / "of 2026.11")]) == 0
    found = json.loads((tmp_path / "new" / "of 2026.11.json").read_text("utf-8"))
    assert found["correctness"] == [row]
    assert "no time" in (tmp_path / "new" / "of 2026.11.md").read_text("utf-8")


def test_infinities_are_equal_or_wrong() -> None:
    """A masked score is minus infinity on both sides."""
    exact = np.array([-np.inf, 1.0, 2.0])
    assert launches.far(np.array([-np.inf, 1.0, 2.0], np.float32), exact) == 0
    assert launches.far(np.array([0.0, 1.0, 2.0], np.float32), exact) == np.inf
    assert launches.far(np.array([-np.inf, np.nan, 2.0], np.float32), exact) == np.inf


def test_a_failure_ends_one_row(monkeypatch) -> None:
    """Of each part: the others are run, and the reason is in the table."""

    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nmore | lines")

    monkeypatch.setattr(correctness, "save", fails)
    rows = list(correctness.rows(DRY, "sm_90", "emulate", ("float32",), SMALL, math.inf))
    assert [row["not run"] for row in rows] == ["RuntimeError: CUDA error: out of memory"] * len(DRY)
    assert not any(row["ok"] for row in rows)
    assert "not run: RuntimeError" in markdown({"device": "a card", "about": {}, "correctness": rows})
    late = correctness.rows(DRY, "sm_90", "emulate", ("float32",), SMALL, -1.0)
    assert all("seconds of this part were over" in row["not run"] for row in late)
    for name, stub in (("ceilings", fails), ("forget", lambda: None)):
        monkeypatch.setattr(speed, name, stub)
    found = list(speed.rows("sm_90", [TIMED[0].name, TIMED[1].name], math.inf))
    assert [row["not run"] for row in found] == ["RuntimeError: CUDA error: out of memory"] * 2


def test_the_target_of_a_card() -> None:
    """The newest that runs: 8.7 has none of its own."""
    targets = {"sm_80": "sm_80", "sm_87": "sm_86", "sm_89": "sm_89", "sm_90": "sm_90"}
    assert {each: gpu.target_of(each) for each in targets} == targets
    with pytest.raises(BringupError, match="sm_75"):
        gpu.target_of("sm_75")


def test_a_floor() -> None:
    """Reads at the rate of a read, writes at the rate of a copy; operations where they take longer."""
    limits = {"read GB/s": 4000.0, "copy GB/s": 2000.0, "bf16 TFLOP/s": 500.0}
    assert speed.floor_of({"read": 4_000_000, "written": 2_000_000, "flops": 500_000_000}, limits) == pytest.approx(2)
    assert speed.floor_of({"read": 0, "written": 0, "flops": 5_000_000_000}, limits) == pytest.approx(10)


def test_a_table_of_times() -> None:
    row = {
        "row": "GPT-2", "read GB/s": 4000.0, "floor us": 60.0, "share of floor": 0.5, "launches": 62,
        "us": {name: {"median": 120.0, "all": [119.0, 121.0]} for name in ("bringup", "transformers")},
        "equal tokens": {"bringup": 144, "transformers": 144},
    }  # fmt: skip
    text = markdown({"device": "a card", "about": {}, "speed": [row, {"row": "Llama", "not run": "time"}]})
    assert (
        "| GPT-2 | 4,000 | 60.0 | 120.0 [119.0 - 121.0] | 50% | 120.0 [119.0 - 121.0] |  | 62 | transformers 144 |"
        in text
    )
    assert "| Llama | not run: time |" in text
