"""Caches of another dtype than the model's, compared with transformers with keys and values rounded to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from bringup.cli.main import cli
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import Job, open_job
from bringup.compile.parity.reference import Reference
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import Session, load
from bringup.compile.verify.command import parity_of
from bringup.compile.verify.evidence import GRAPH
from bringup.diagnostics import BringupError
from bringup.graphs.core.options import GraphOptions
from bringup.graphs.ops.kv_cache import write_cache
from tests.compile.test_many_sequences import BUCKET, CONTEXT, cases, far, job_of
from tests.models import parity

# Of logits in float32: sums in another order, and the few cached numbers that they move over the edge between two
# roundings: 5e-7 without any of these, 4e-5 with one. Rounding all of them moves logits by 3e-3 and more.
NEAR = 1e-4
TOKENS = parity.random_tokens(90, 97)
PROMPT = 80


def with_cache(job: Job, dtype: str) -> Job:
    return open_job(checkpoint=job.checkpoint.source, dtype=job.graph.dtype, options=GraphOptions(cache_dtype=dtype))


def logits(session: Session) -> np.ndarray:
    """Of a prompt in chunks, and of decode steps: the last rows."""
    rows = [session.prefill(TOKENS[:PROMPT])[-1]]
    return np.stack([*rows, *map(session.decode, TOKENS[PROMPT:])])


# For `cpu` a cache of keys and values, in rings, and one of MLA: the rounding is lowered with the write.
ROUNDED = [
    case
    for case in cases("llama-window")
    if case.values[1] == "torch" or case.values[0] in ("llama-window", "deepseek_v3")
]


@pytest.mark.parametrize(("name", "target"), ROUNDED)
def test_logits_are_those_of_rounded_keys_and_values(name: str, target: str, tmp_path: Path, record_property) -> None:
    """Prefill reads keys of its own step from the cache too; the window of a layer is a ring."""
    job = with_cache(job_of(name, tmp_path / "checkpoint"), "bfloat16")
    session = load(build(job, out=tmp_path / "b", target=target, max_seq_len=CONTEXT, buckets=(BUCKET,)))
    assert {state.dtype for state in session.interface.states} == {"bfloat16"}
    assert ("ring" in {state.kind for state in session.interface.states}) is (name in ("llama-window", "gpt_oss"))
    rounded, plain = (
        Reference(job.checkpoint, job.config, "float32", dtype).logits(TOKENS)[PROMPT - 1 :]
        for dtype in ("bfloat16", None)
    )
    error, moved = far(logits(session), rounded), far(rounded, plain)
    record_property("error", error)
    record_property("moved", moved)
    print(f"\n{name}, {target}: {error:.1e} against rounded keys and values, which move logits by {moved:.1e}")
    assert error <= NEAR < moved / 10


# --- verify


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return job_of("llama-window", tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def session_of(plain: Job, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Job, Session]]:
    """The job with a cache of a dtype, and what it compiles to; each is compiled once, when a test asks for it."""

    @cache
    def compiled(dtype: str) -> tuple[Job, Session]:
        job, out = with_cache(plain, dtype), tmp_path_factory.mktemp(dtype) / "b"
        settings = {"target": "torch", "max_seq_len": CONTEXT, "buckets": (BUCKET,), "all_logits": True}
        return job, load(build(job, out=out, **settings))

    return compiled


@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("float8_e4m3fn", "float8_e5m2"))]
)
def test_a_program_may_round_as_its_cache_does(session_of: Callable[[str], tuple[Job, Session]], dtype: str) -> None:
    job, session = session_of(dtype)
    found = parity_of(session, job)
    assert (found.ok, found.dtype, found.findings) == (True, "float32", [])
    assert found.differences[0].phase == GRAPH
    assert all(difference.excess > 0.01 for difference in found.differences[1:])


def test_a_coarser_cache_than_the_job_has_departs(session_of: Callable[[str], tuple[Job, Session]], plain: Job) -> None:
    """The bound is of the cache's dtype: what float8 rounds is no rounding of bfloat16, nor that of float32."""
    for job, dtype in ((session_of("bfloat16")[0], "float8_e4m3fn"), (plain, "bfloat16")):
        found = parity_of(session_of(dtype)[1], job)
        assert not found.ok
        assert all(difference.ok is (difference.phase == GRAPH) for difference in found.differences)


@pytest.mark.slow
def test_a_departure_is_bisected(session_of: Callable[[str], tuple[Job, Session]]) -> None:
    job, session = session_of("bfloat16")
    assert parity_of(session, job, 20, 2, bisect=True).ok


# --- the option


@pytest.mark.parametrize("dtype", ["float16", "float8_e5m2"])
def test_large_numbers_stay_numbers(dtype: str) -> None:
    """Keys of some models are beyond what narrow dtypes hold."""
    cache = torch.zeros(4, 1, 2, dtype=getattr(torch, dtype))
    write_cache(cache, torch.tensor([2]), torch.tensor([[[-1e6, 1.0]]]))
    assert cache[2].tolist() == [[-torch.finfo(cache.dtype).max, 1.0]]


def test_sizes(plain: Job) -> None:
    whole, half = dry_run(plain, "torch", CONTEXT), dry_run(with_cache(plain, "float16"), "torch", CONTEXT)
    assert (whole.cache, whole.rings) == (2 * half.cache, 2 * half.rings)
    assert "in float16" in dict(half.rows)["cache"]


def test_a_target_names_what_it_takes(plain: Job, tmp_path: Path) -> None:
    job = with_cache(plain, "float8_e4m3fn")
    with pytest.raises(BringupError, match="BU024: target `llvm` does not support `float8_e4m3fn`") as raised:
        build(job, out=tmp_path / "b", target="cpu")
    assert raised.value.findings[0].help == ("it supports float32, bfloat16, float16; `--target torch` supports it")
    with pytest.raises(BringupError, match="BU024"):
        dry_run(job, "cpu", CONTEXT)


def test_the_option(plain: Job) -> None:
    words = ["compile", "--checkpoint", plain.checkpoint.source, "--dry-run", "--target", "torch", "--cache-dtype"]
    done = CliRunner().invoke(cli, [*words, "bfloat16"])
    assert (done.exit_code, "in bfloat16" in done.stdout) == (0, True), done.output
    refused = CliRunner().invoke(cli, [*words, "bf16"])
    assert (refused.exit_code, "did you mean `bfloat16`?" in refused.stderr) == (2, True)
