"""Every family: the reference executor, in poisoned memory, gives what the graph gives by torch without compiling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.compile.bisect.eager import Eager
from bringup.compile.pipeline import build
from bringup.compile.program.step_inputs import Chunk, make_step, sequence_step
from bringup.compile.runtime.session import Session, load
from bringup.graphs.registry import FAMILIES
from tests.models import family, parity
from tests.models.test_families import FLOAT32, Case

NEAR = 1e-5  # largest |difference| over largest |logit|: sums in another order
# By these weights, transformers' own float32 logits of Qwen3-Next differ 1.5e-5 from those in float64.
ROUGH = {"qwen3_next": 4e-5}
FAST = ("llama",)
AS_LLAMA = ("exaone", "internlm", "qwen")  # the same graph under other names of tensors
FIRST = {each.name: next(case for case in FLOAT32 if case.family == each.name) for each in FAMILIES}
PROMPT, STEPS, BATCH = 40, 6, 4
CONTEXT = 128


def cases() -> list[object]:
    return [
        pytest.param(case, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name, case in FIRST.items()
        if name not in AS_LLAMA
    ]


@pytest.mark.filterwarnings("ignore:BU151")
@pytest.mark.parametrize("case", cases())
def test_logits(case: Case, tmp_path: Path, record_property) -> None:
    """Prefill and decode of one sequence; then four at once, of different lengths, in blocks in any order."""
    written = family.written(case.module, case.name, tmp_path / "checkpoint", case.dtype)
    job = written.job()
    settings = {"target": "schedule", "max_seq_len": CONTEXT, "buckets": (PROMPT,), "all_logits": True}
    bundle = build(job, out=tmp_path / "b", max_batch_size=1 if job.graph.inputs else BATCH, **settings)
    tokens = parity.random_tokens(PROMPT + STEPS, job.graph.config.vocab_size)
    inputs = {name: rows[: len(tokens)] for name, rows in written.inputs.items()}
    one = load(bundle)
    ours = parity.run(one, tokens, PROMPT, **inputs)
    wanted = eager(job, tokens, inputs)
    assert one.manifest["target"] == "schedule"
    worst = float(np.abs(ours - wanted).max() / np.abs(wanted).max())
    if not job.graph.inputs:
        worst = max(worst, four(one, tokens, wanted))
    record_property("parity", f"{case} schedule: {worst:.1e}")
    assert worst <= ROUGH.get(case.family, NEAR)


def eager(job, tokens: list[int], inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Logits of all tokens at once."""
    step = sequence_step(tokens, 0, len(tokens), CONTEXT)
    return Eager(job, CONTEXT)({**step, **inputs}).float().numpy()


def four(session: Session, tokens: list[int], wanted: np.ndarray) -> float:
    """How far four sequences that begin alike are from one: packed prefill, then decode of all."""
    session.reset()
    executor, interface = session.executor, session.interface
    entry, decode = interface.entry(f"prefill_{PROMPT}_{BATCH}"), interface.entry(f"decode_{BATCH}")
    free = np.random.default_rng(3).permutation(interface.num_blocks - 1).tolist()
    blocks = [[free.pop(), free.pop()] for _ in range(BATCH)]
    lengths = [13, 3, 9, 15]
    chunks = [Chunk(tokens[:count], 0, blocks[row], row, count) for row, count in enumerate(lengths)]
    rows = executor.step(entry.name, make_step(chunks, entry, interface))["logits"]
    parts = np.split(rows[: sum(lengths)], np.cumsum(lengths)[:-1])
    worst = max(float(np.abs(part - wanted[: len(part)]).max()) for part in parts)
    for _ in range(STEPS):
        chunks = [Chunk([tokens[n]], n, blocks[row], row, n + 1) for row, n in enumerate(lengths)]
        rows = executor.step(decode.name, make_step(chunks, decode, interface))["logits"]
        worst = max(worst, *(float(np.abs(rows[row] - wanted[n]).max()) for row, n in enumerate(lengths)))
        lengths = [n + 1 for n in lengths]
    return worst / float(np.abs(wanted).max())
