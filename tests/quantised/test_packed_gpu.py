"""Packed weights on `cuda:…`: the schedule by torch, and its kernels in the emulator, give the logits of `torch`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import LlamaConfig, MixtralConfig

from bringup.compile.bundle.folder import read_manifest
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.graphs.core.options import GraphOptions
from tests.models import parity
from tests.quantised import fp8_checkpoints
from tests.schedule.models import COMMON, CONTEXT, PREFILL, VOCAB

NEAR = 1e-5
SIZES = {
    **COMMON, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parity.save_checkpoint(LlamaConfig(**SIZES), tmp_path_factory.mktemp("llama"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["int4-g32", "int8"])
def test_llama(llama: Path, recipe: str, tmp_path: Path) -> None:
    job = open_job(checkpoint=llama, options=GraphOptions(quantize=recipe))
    _assert_same_logits(job, tmp_path)


@pytest.mark.slow
def test_experts_of_float8(tmp_path: Path) -> None:
    config = MixtralConfig(**SIZES | {"intermediate_size": 48}, num_local_experts=4)
    job = open_job(checkpoint=fp8_checkpoints.write(config, tmp_path / "checkpoint", 16))
    _assert_same_logits(job, tmp_path)


def _assert_same_logits(job: Job, folder: Path) -> None:
    tokens = parity.random_tokens(9, VOCAB)
    wanted = _logits(_built(job, "torch", folder), None, tokens)
    bundle = _built(job, "cuda:sm_90", folder)
    assert read_manifest(bundle)["weights_form"] == "packed"
    for executor in ("reference", "emulate"):
        found = _logits(bundle, executor, tokens)
        assert abs(found - wanted).max() <= NEAR * abs(wanted).max(), executor


def _built(job: Job, target: str, folder: Path) -> Path:
    out = folder / target.partition(":")[0]
    return build(job, out=out, target=target, weights_form="packed", max_seq_len=CONTEXT, buckets=(PREFILL,))


def _logits(bundle: Path, executor: str | None, tokens: list[int]) -> np.ndarray:
    session = load(bundle, executor)
    logits = [session.prefill(tokens[:7]), *(session.decode(token) for token in tokens[7:])]
    return np.stack([each.reshape(-1, VOCAB)[-1] for each in logits])


def test_the_schedule_counts_packed_bytes(llama: Path, tmp_path: Path) -> None:
    """The weights of a step of decode: all that the bundle holds, but for the table's other rows and rope's."""
    job = open_job(checkpoint=llama, options=GraphOptions(quantize="int4-g32"))
    settings = {"target": "cuda:sm_90", "max_seq_len": CONTEXT, "buckets": (PREFILL,), "emit": "schedule"}
    text = build(job, out=tmp_path / "schedule.txt", **settings).read_text("utf-8")
    decode = text[text.index("# decode:") :].splitlines()
    counted = int(next(line for line in decode if line.startswith("  sum")).split()[1].replace(",", ""))
    declared = {name: entry.declared.nbytes for name, entry in pack_job(job).job.plan.entries.items()}
    table = declared.pop("model.embed_tokens.weight")
    rope = 2 * 16 // 2 * 4  # a row of cosines and one of sines, half a head
    assert counted == sum(declared.values()) + table // VOCAB + rope
