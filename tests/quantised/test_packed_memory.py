"""Memory of a Llama in 4 bits as it runs on `torch`: what estimates say of its weights, and no matrix in floats."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile

from bringup.adapters.apply.parallel import Parallel
from bringup.compile.bundle.folder import WEIGHTS
from bringup.compile.estimate.fit import fit
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import packed_shares
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.graphs.core.options import GraphOptions
from bringup.graphs.ops.quantised import AT_A_TIME

COLUMNS, ROWS, CONTEXT = 512, 4096, 64
WORDS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": COLUMNS, "intermediate_size": ROWS,
    "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 64, "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
MATRIX = 4 * COLUMNS * ROWS  # bytes of one matrix of the MLP in float32


@pytest.fixture(scope="module")
def job() -> Job:
    return open_job("llama", "dummy", config=WORDS, dtype="bfloat16", options=GraphOptions(quantize="int4-g128"))


@pytest.fixture(scope="module")
def bundle(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int4") / "b"
    return build(job, out=out, target="torch", max_seq_len=CONTEXT, buckets=(8,))


def test_a_step_makes_no_matrix_of_floats(bundle: Path) -> None:
    """What torch holds at once in a prompt and in decode: some rows of a matrix, and their codes on the way."""
    session = load(bundle)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        session.prefill(range(8))
        session.decode(8)
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    assert 4 * AT_A_TIME < max(held) < MATRIX // 4


def test_estimates_are_the_bytes_of_the_bundle(job: Job, bundle: Path) -> None:
    sizes, whole = dry_run(job, "torch", CONTEXT), Parallel()
    [checked] = packed_shares(job, whole)
    assert checked == fit(job, 1 << 30, parallel=whole, context=CONTEXT, packed=True).weights == sizes.weights
    assert 0 <= (bundle / WEIGHTS).stat().st_size - sizes.weights - sizes.tables < 1 << 13  # header and alignment
    assert sizes.running == sizes.weights + sizes.tables + sizes.cache
    assert sizes.weights < 0.3 * 2 * sizes.elements
