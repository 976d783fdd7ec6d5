"""The target `llvm`: logits and tokens next to torch's, on this processor and on one that the bundle was not for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bringup.cli.main import cli
from bringup.compile.job import open_job
from bringup.compile.llvm.executor import LlvmExecutor
from bringup.compile.llvm.select import registry
from bringup.compile.llvm.select.rows import rows
from bringup.compile.pipeline import build
from bringup.compile.runtime.opening import opened_files
from bringup.compile.runtime.session import Session, load
from bringup.compile.targets.llvm import LLVM
from bringup.diagnostics import BringupError
from bringup.graphs.ops.lowering import OpLowering, using
from tests.models import family, parity
from tests.schedule.models import CONFIGS, CONTEXT, PREFILL, greedy, job_of
from tests.schedule.test_families import AS_LLAMA, BATCH, FIRST, PROMPT, STEPS, eager, four

# Largest |difference| over largest |logit| in float32: sums in another order. Random weights amplify it: deepseek_v2's
# row 14 moves by 1.1e-5 where each weight changes in its last bit, and by 1.7e-5 with AVX-512's order of sums.
NEAR = 3e-5
# In 16 bits both round between operations, and a sum that differs in its last bit is rounded to another neighbour.
NEAR_16 = {"bfloat16": 3e-2, "float16": 4e-3}
PROMPTS = ([13], list(range(14, 34)))
NEW = 6
FAST = ("llama",)
NAMES = [name for name in FIRST if name not in AS_LLAMA]
RINGS = 512  # tokens of a context in which windows have caches of their own
SETTINGS = {"max_seq_len": CONTEXT, "buckets": (PREFILL,)}


def tokens_of(session: Session) -> list[list[int]]:
    return greedy(session, PROMPTS, NEW)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """Tiny GPT-2 in float32."""
    folder = tmp_path_factory.mktemp("llvm")
    return build(job_of("gpt2", folder), out=folder / "b", target="llvm", **SETTINGS)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> list[list[int]]:
    """The tokens of the same model by torch."""
    folder = tmp_path_factory.mktemp("torch")
    return tokens_of(load(build(job_of("gpt2", folder), out=folder / "b", target="torch", **SETTINGS)))


@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in NAMES])
def test_logits(name: str, tmp_path: Path, record_property) -> None:
    """Prefill and decode of one sequence; then four at once, of different lengths, in blocks in any order.

    The forms of operations are the target's: MLA's absorbed form is rounded elsewhere than the direct one.
    """
    case = FIRST[name]
    written = family.written(case.module, case.name, tmp_path / "checkpoint", case.dtype)
    job = written.job()
    batch = 1 if job.graph.inputs else BATCH
    settings = {"max_seq_len": RINGS, "buckets": (PROMPT,), "all_logits": True, "max_batch_size": batch}
    session = load(build(job, out=tmp_path / "b", target="llvm", **settings))
    assert isinstance(session.executor, LlvmExecutor)
    tokens = parity.random_tokens(PROMPT + STEPS, job.graph.config.vocab_size)
    inputs = {name: rows[: len(tokens)] for name, rows in written.inputs.items()}
    with using(OpLowering(implementations=LLVM.implementations)):
        expected = eager(job, tokens, inputs)
    worst = float(np.abs(parity.run(session, tokens, PROMPT, **inputs) - expected).max() / np.abs(expected).max())
    if not job.graph.inputs:
        worst = max(worst, four(session, tokens, expected))
    record_property("parity", f"{case} llvm: {worst:.1e}")
    assert worst <= NEAR


@pytest.mark.parametrize("executor", [None, "threads:1", "threads:7", "mapped", "reference"])
def test_the_tokens_of_torch(bundle: Path, wanted: list[list[int]], executor: str | None) -> None:
    session = load(bundle, executor)
    assert isinstance(session.executor, LlvmExecutor) is (executor != "reference")
    assert tokens_of(session) == wanted


def test_run_prints_the_tokens_of_torch(bundle: Path, wanted: list[list[int]]) -> None:
    tokens = ",".join(map(str, PROMPTS[1]))
    result = CliRunner().invoke(cli, ["run", str(bundle), "--tokens", tokens, "--max-new-tokens", str(NEW), "--json"])
    assert json.loads(result.stdout)["tokens"] == wanted[1]


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.slow), "bfloat16"])
def test_16_bits_are_as_near_as_their_digits(dtype: str, tmp_path: Path) -> None:
    """Weights are read as they are stored; sums are float32, and results are rounded where torch rounds them."""
    checkpoint = parity.save_checkpoint(CONFIGS["llama"], tmp_path / "checkpoint", dtype)
    job = open_job(checkpoint=str(checkpoint))
    sessions = [load(build(job, out=tmp_path / name, target=name, **SETTINGS)) for name in ("llvm", "torch")]
    ours, theirs = (np.asarray(session.prefill(PROMPTS[1]), np.float32) for session in sessions)
    assert np.abs(ours - theirs).max() <= NEAR_16[dtype] * np.abs(theirs).max()


def test_a_bundle_for_another_processor_is_compiled_as_it_is_opened(
    bundle: Path, wanted: list[list[int]], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(bundle, other)
    machine = json.loads((other / "kernels.json").read_text("utf-8"))
    machine["features"] = [*machine["features"], "of-another"]
    machine["sha256"] = machine["sha256"][:2]  # as a version wrote them that had fewer files
    (other / "kernels.json").write_text(json.dumps(machine), "utf-8")
    (other / "kernels.o").write_bytes(b"machine code of another processor")
    assert tokens_of(load(other)) == wanted


def test_a_bundle_for_every_processor(wanted: list[list[int]], tmp_path: Path) -> None:
    options = {"cpu": "generic"}
    found = build(job_of("gpt2", tmp_path), out=tmp_path / "b", target="llvm", target_options=options, **SETTINGS)
    assert json.loads((found / "kernels.json").read_text("utf-8"))["features"] == []
    assert tokens_of(load(found)) == wanted


@pytest.mark.parametrize(
    ("file", "content"),
    [("kernels.o", b"none"), ("elements.o", b""), ("threads.o", b""), ("kernels.json", b'{"triple": 1}')],
)
def test_files_that_compile_does_not_write_are_refused(bundle: Path, tmp_path: Path, file: str, content: bytes) -> None:
    other = tmp_path / "other"
    shutil.copytree(bundle, other)
    (other / file).write_bytes(content)
    with pytest.raises(BringupError, match="BU603"):
        load(other)


def test_an_operation_that_no_kernel_takes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SELECTORS", tuple(each for each in registry.SELECTORS if each is not rows))
    with pytest.raises(BringupError, match=r"BU504: no kernel for the CPU supports `bringup\.layer_norm\.default`"):
        build(job_of("gpt2", tmp_path), out=tmp_path / "b", target="llvm", **SETTINGS)
    assert not (tmp_path / "b").exists()


def test_states_can_be_put_back(bundle: Path) -> None:
    session = load(bundle)
    session.prefill(PROMPTS[1])
    executor = session.executor
    before = executor.states()
    executor.reset()
    assert all(not state.any() for state in executor.states().values())
    executor.set_states(before)
    for name, state in executor.states().items():
        np.testing.assert_array_equal(state, before[name])


@pytest.mark.parametrize("name", ["threads:0", "threads:", "gpu", "threads:two", "mapped:", "mapped:100000"])
def test_another_executor_is_refused(bundle: Path, name: str) -> None:
    with pytest.raises(BringupError, match="BU018") as raised:
        load(bundle, name)
    kind, separator, _ = name.partition(":")
    assert (f"write `{kind}:N`" in str(raised.value)) == bool(separator)


@pytest.mark.parametrize(("executor", "spare", "is_mapped"), [
    (None, 1 << 40, False), ("threads:2", 1 << 40, False), (None, 1000, True), (None, None, False),
    ("mapped", 1 << 40, True), ("mapped:2", 1 << 40, True),
])  # fmt: skip
def test_weights_are_read_into_memory_where_there_is_room(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, executor: str | None, spare: int | None, is_mapped: bool
) -> None:
    monkeypatch.setattr("bringup.compile.runtime.opening.available_bytes", lambda: spare)
    running = load(bundle, executor).executor
    assert isinstance(running, LlvmExecutor)
    assert {_is_mapped(array) for array in running._weights.values()} == {is_mapped}
    _, _, stored = opened_files(bundle)
    for name, array in running._weights.items():
        np.testing.assert_array_equal(array, stored[name])


def _is_mapped(array: np.ndarray) -> bool:
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return hasattr(owner, "given")
