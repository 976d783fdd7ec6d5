"""Targets `cuda:…`: what the reference, and the kernels in the emulator, give for a bundle."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from transformers import BloomConfig, GPTNeoXConfig, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config

from bringup.cli.main import cli
from bringup.compile.gpu import states
from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.gpu.opening import cuda_of, runs_on
from bringup.compile.gpu.profile import chrome_trace, totals
from bringup.compile.gpu.trial.trial import Row
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime import kernel_trial
from bringup.compile.runtime.batch import load_batch
from bringup.compile.runtime.kernel_trial import trial_of
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import Session, load
from bringup.compile.targets.registry import find
from bringup.diagnostics import BringupError
from tests.cuda.machine import has_gpu
from tests.models import parity
from tests.schedule.models import COMMON, CONFIGS, CONTEXT, PREFILL, VOCAB, greedy, job_of

PROMPTS = ([13], list(range(14, 34)))
NEW = 4
# Largest |difference| over largest |logit|, of kernels and the schedule by torch: sums in another order, and in 16 bits
# other roundings between operations.
NEAR = {"float32": 1e-4, "bfloat16": 5e-2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES: dict[str, PreTrainedConfig] = {
    **CONFIGS,
    "mistral": MistralConfig(**COMMON, **HEADS, intermediate_size=48, head_dim=8, sliding_window=17),
    "qwen3": Qwen3Config(**COMMON, **HEADS, intermediate_size=48, head_dim=8),
    "bloom": BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4),
    "gpt_neox": GPTNeoXConfig(**COMMON, intermediate_size=64, num_attention_heads=4, rotary_pct=0.5),
    # Prompts are longer than 16 tokens, so that the angles are powers of another base.
    "dynamic": LlamaConfig(
        **COMMON | {"max_position_embeddings": 16}, **HEADS, intermediate_size=48,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 8.0},
    ),
}  # fmt: skip
# Each family once, both architectures and both dtypes; gpt2 in float32 is the bundle of the other tests.
CASES = [
    ("llama", "sm_80", "bfloat16"),
    ("gpt2", "sm_90", "bfloat16"),
    ("mistral", "sm_90", "float32"),
    ("qwen3", "sm_90", "bfloat16"),
    ("bloom", "sm_80", "float32"),
    ("gpt_neox", "sm_90", "float32"),
    ("gpt_oss", "sm_90", "float32"),
    ("dynamic", "sm_80", "float32"),
]


def tokens_of(session: Session) -> list[list[int]]:
    return greedy(session, PROMPTS, NEW)


def test_the_emulator_gives_the_tokens_of_torch(gpu_bundle, tmp_path) -> None:
    job = job_of("gpt2", tmp_path)
    wanted = tokens_of(load(build(job, out=tmp_path / "t", target="torch", max_seq_len=CONTEXT, buckets=(PREFILL,))))
    assert tokens_of(load(gpu_bundle, "reference")) == wanted
    assert tokens_of(load(gpu_bundle, "emulate")) == wanted


def test_each_launch_has_a_cubin(gpu_bundle) -> None:
    plan = json.loads((gpu_bundle / "kernels.json").read_text("utf-8"))
    assert plan["target"] == "sm_90a"
    assert {f"{each['digest']}.cubin" for each in plan["kernels"]} == {
        p.name for p in (gpu_bundle / "cubins").iterdir()
    }
    groups = [group for groups in plan["calls"].values() for group in groups]
    assert groups
    assert all(groups)


def test_states_pass_through_the_device(gpu_bundle, monkeypatch) -> None:
    """In parts: pinned memory does not grow with the caches."""
    monkeypatch.setattr(states, "CHUNK", 1000)
    executor = load(gpu_bundle, "emulate").executor
    assert isinstance(executor, GpuExecutor)
    assert executor._states._buffer.nbytes == 1000
    given = {name: np.arange(array.size, dtype=array.dtype) for name, array in executor.states().items()}
    given = {name: array.reshape(executor.states()[name].shape) for name, array in given.items()}
    executor.set_states(given)
    for name, array in executor.states().items():
        np.testing.assert_array_equal(array, given[name])
    executor.reset()
    assert not any(array.any() for array in executor.states().values())


@pytest.fixture(scope="module")
def rows(gpu_bundle) -> list[Row]:
    """The trial of the bundle's kernels."""
    return trial_of(gpu_bundle)


@pytest.mark.slow
def test_kernels_are_clean_and_move_what_the_schedule_counts(rows) -> None:
    assert {row.entry for row in rows} == {"prefill_32", "decode"}
    assert [finding for row in rows for finding in row.seen.findings] == []
    assert max(row.error for row in rows) < NEAR["float32"]
    for row in rows:
        wanted = row.cost.weights + row.cost.cache + row.cost.other
        assert row.seen.written == row.cost.written
        assert row.seen.read == pytest.approx(wanted, rel=0.1)


def test_the_command_prints_a_table(gpu_bundle, rows, monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["kernels", "test", str(gpu_bundle), "--entry", "decod"])
    assert ended.value.code == 2
    assert "`decod` for `entry`\n  = help: did you mean `decode`?" in capsys.readouterr().err
    tried: list[tuple[Path, tuple[str, ...]]] = []
    monkeypatch.setattr(kernel_trial, "trial_of", lambda folder, _, names: tried.append((folder, names)) or rows)
    with pytest.raises(SystemExit) as ended:
        cli.main(["kernels", "test", str(gpu_bundle), "--entry", "decode"])
    assert (ended.value.code, tried) == (0, [(gpu_bundle, ("decode",))])
    assert "attention_decode" in capsys.readouterr().out


@pytest.mark.slow
def test_a_wrong_kernel_and_a_wrong_draw_are_found(gpu_bundle, tmp_path) -> None:
    """A call with a residual that starts 4 bytes late; the kernel that draws, with two of a step's fields exchanged."""
    folder = shutil.copytree(gpu_bundle, tmp_path / "wrong")
    plan = json.loads((folder / "kernels.json").read_text("utf-8"))
    name = next(name for name in plan["calls"] if "decode" in name)
    call = next(call for group in plan["calls"][name] for call in group if ["%add", 0] in call["arguments"])
    call["arguments"][call["arguments"].index(["%add", 0])] = ["%add", 4]
    (draw,) = plan["sampling"]["decode"]["after"]
    arguments = draw["arguments"]
    positions, lengths = (arguments.index([name, 0]) for name in ("positions", "lengths"))
    arguments[positions], arguments[lengths] = arguments[lengths], arguments[positions]
    (folder / "kernels.json").write_text(json.dumps(plan))
    found = trial_of(folder)
    assert any("%add" in finding for row in found for finding in row.seen.findings if row.group != "sampling")
    assert [finding for row in found if row.group == "sampling" for finding in row.seen.findings] == [
        "`slots` is not that of the next step, first of sequence 0"
    ]


def test_a_profile(gpu_bundle) -> None:
    session = load(gpu_bundle, "emulate")
    assert isinstance(session.executor, GpuExecutor)
    profile = session.executor.start_profile()
    list(session.generate([1, 2, 3], max_new_tokens=3))
    found = totals(profile)
    assert {each.entry for each in found} == {"prefill_32", "decode"}
    assert all(each.counted and each.seconds > 0 for each in found)
    drawn = {each.label: each.nbytes for each in profile.measured if each.label.startswith("sampling")}
    assert drawn == {"sampling: draw": 0}  # greedy
    events = json.loads(chrome_trace(profile))["traceEvents"]
    assert len(events) == len(profile.measured) == sum(each.launches for each in found)
    assert all(after["ts"] >= before["ts"] for before, after in pairwise(events))


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_no_gpu(gpu_bundle) -> None:
    with pytest.raises(BringupError, match="--executor emulate") as caught:
        load(gpu_bundle)
    assert caught.value.findings[0].code == "BU614"


def test_architectures() -> None:
    assert runs_on("sm_80", "sm_89")
    assert not runs_on("sm_86", "sm_80")
    assert runs_on("sm_90a", "sm_90")
    assert not runs_on("sm_100a", "sm_103")
    assert (cuda_of((8, 8)), cuda_of((9, 4))) == (12, 13)
    with pytest.raises(BringupError, match="one of cuda:sm_80") as caught:
        find("cuda")
    assert caught.value.findings[0].code == "BU006"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize(("name", "architecture", "dtype"), CASES)
def test_families(name: str, architecture: str, dtype: str, tmp_path: Path) -> None:
    """Logits of one sequence, and tokens of four at once, by the kernels and by the reference; then all checks."""
    checkpoint = parity.save_checkpoint(FAMILIES[name], tmp_path / "checkpoint", dtype)
    job = open_job(checkpoint=str(checkpoint))
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "max_batch_size": 4}
    out = build(job, out=tmp_path / "b", target=f"cuda:{architecture}", **settings)
    tokens = parity.random_tokens(PREFILL + NEW, job.graph.config.vocab_size)
    ours, wanted = (parity.run(load(out, executor), tokens, PREFILL) for executor in ("emulate", "reference"))
    assert np.abs(ours - wanted).max() / np.abs(wanted).max() < NEAR[dtype]
    if dtype == "float32":
        assert _batch(out, "emulate", tokens) == _batch(out, "reference", tokens)
    findings = [f"{row.entry} {row.kernels}: {finding}" for row in trial_of(out) for finding in row.seen.findings]
    assert findings == []


def _batch(out: Path, executor: str, tokens: list[int]) -> dict[int, list[int]]:
    """The tokens of four requests of 3 to 6 tokens each."""
    batch = load_batch(out, executor)
    answers = {batch.add(Request(tokens[start : 2 * start + 3], max_new_tokens=NEW)): [] for start in range(4)}
    while batch:
        for event in batch.step():
            answers[event.id] += [event.token]
    return answers
