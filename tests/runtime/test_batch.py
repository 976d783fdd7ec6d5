"""A batch on a program that was compiled: each request gets the tokens of its own run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import bringup
from bringup.cli.main import cli
from bringup.compile.bundle import bundle_key
from bringup.compile.cache.store import key_of
from bringup.compile.estimate.sizes import dry_run
from bringup.compile.job import Job
from bringup.compile.program.assemble import Stage
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.stage_key import stage_inputs
from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.opening import Opened
from bringup.compile.runtime.session import Session
from bringup.compile.targets.selection import select
from bringup.diagnostics import BringupError
from bringup.graphs.gpt2 import SIZES

TINY = SIZES["gpt2"] | {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 256, "vocab_size": 67}
SHARED = np.random.default_rng(5).integers(0, 67, 140).tolist()


@pytest.fixture(scope="module")
def job() -> Job:
    return bringup.open_job("gpt2", "dummy", config=TINY)


@pytest.fixture(scope="module")
def bundle(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch")
    return bringup.build(job, out=folder / "b", target="torch", buckets=(32,), max_batch_size=4)


@pytest.fixture(scope="module")
def small(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose caches hold one sequence at its full length, and four that are short."""
    out = tmp_path_factory.mktemp("small") / "b"
    return bringup.build(job, out=out, target="torch", buckets=(32,), max_batch_size=4, cache_blocks=4)


@pytest.fixture(scope="module")
def opened(bundle: Path) -> Opened:
    """Loaded once: what each batch and each run begins with is a new cache."""
    return bringup.load_batch(bundle)._opened


def requests(count: int, prefix: list[int]) -> list[bringup.Request]:
    random = np.random.default_rng(count)
    lengths = random.integers(1, 80, count)
    return [
        bringup.Request(
            [*prefix, *random.integers(0, 67, length).tolist()],
            max_new_tokens=int(random.integers(5, 30)),
            temperature=index % 3 / 2,
            seed=index,
        )
        for index, length in enumerate(lengths)
    ]


def alone(opened: Opened, given: list[bringup.Request]) -> list[list[int]]:
    session = Session(opened)
    session.reset()
    found: list[list[int]] = []
    for each in given:
        settings = {"max_new_tokens": each.max_new_tokens, "temperature": each.temperature, "seed": each.seed}
        found.append(list(session.generate(each.tokens, **settings)))
    return found


def new_batch(opened: Opened) -> Batch:
    opened.executor.reset()
    return Batch(opened)


def finish(batch: Batch, given: list[bringup.Request], steps: int) -> list[list[int]]:
    """Adds a request every few steps, and runs to the end."""
    tokens: dict[int, list[int]] = {}
    waiting = list(given)
    while batch or waiting:
        if waiting:
            tokens[batch.add(waiting.pop(0))] = []
        for _ in range(steps):
            for event in batch.step():
                tokens[event.id].append(event.token)
    return list(tokens.values())


@pytest.mark.parametrize("steps", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_requests_that_join_at_different_steps(opened: Opened, steps: int) -> None:
    given = requests(8, [])
    batch = new_batch(opened)
    assert finish(batch, given, steps or 1) == alone(opened, given)
    assert batch.shared_tokens == batch.preemptions == 0


def test_a_prefix_is_computed_once(opened: Opened) -> None:
    given = requests(6, SHARED)
    batch = new_batch(opened)
    assert finish(batch, given, 2) == alone(opened, given)
    assert batch.shared_tokens == 5 * 128


def growing() -> list[bringup.Request]:
    """Each needs a second block while it decodes."""
    return [bringup.Request(SHARED[at : at + 60], max_new_tokens=20, temperature=1.0, seed=at) for at in range(5)]


@pytest.mark.slow
def test_blocks_that_run_out(opened: Opened, small: Path) -> None:
    given = growing()
    batch = bringup.load_batch(small)
    assert finish(batch, given, 1) == alone(opened, given)
    assert batch.preemptions > 0


def test_one_sequence_of_the_full_length_fits(opened: Opened, small: Path) -> None:
    given = [bringup.Request((2 * SHARED)[:240], max_new_tokens=16)]
    batch = bringup.load_batch(small)
    assert finish(batch, given, 1) == alone(opened, given)
    with pytest.raises(BringupError, match="BU016"):
        batch.add(bringup.Request([1] * 257, max_new_tokens=1))


def test_fewer_blocks_than_a_sequence_needs(job: Job, tmp_path: Path) -> None:
    with pytest.raises(BringupError, match=r"BU024.*one sequence of 256 tokens needs 4 blocks of 64 tokens"):
        bringup.build(job, out=tmp_path / "b", target="torch", max_batch_size=4, cache_blocks=3)


@pytest.mark.parametrize("blocks", [None, 4])
def test_the_cache_of_a_dry_run_is_that_of_the_bundle(job: Job, bundle: Path, small: Path, blocks: int | None) -> None:
    sizes = dry_run(job, "torch", None, 4, cache_blocks=blocks)
    states = bringup.load(small if blocks else bundle).interface.states
    assert sizes.cache == sum(4 * math.prod(state.shape) for state in states)
    assert ("4 blocks of 64 tokens" in dict(sizes.rows)["cache"]) is (blocks == 4)


def test_the_number_of_blocks_is_in_every_key(job: Job) -> None:
    def keys(**settings: int) -> tuple[str, str]:
        layout = layout_of(job.graph, 256, (32,), **settings)
        stage = Stage(name="x", part="prologue", path="", point=layout.entries[0])
        inputs = stage_inputs(job.graph, layout, stage, "torch")
        return key_of(inputs or {}), bundle_key._rest(job, layout, select("torch"))["layout"]  # type: ignore[index]

    whole, fewer = keys(max_batch_size=4), keys(max_batch_size=4, cache_blocks=4)
    assert [one != other for one, other in zip(whole, fewer, strict=True)] == [True, True]
    assert keys(max_batch_size=4, cache_blocks=16) == whole


def test_the_command(opened: Opened, small: Path, tmp_path: Path) -> None:
    given = growing()
    lines = [
        {
            "tokens": each.tokens,
            "max_new_tokens": each.max_new_tokens,
            "seed": each.seed,
            "temperature": each.temperature,
        }
        for each in given
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = CliRunner().invoke(cli, ["run", str(small), "--batch", str(tmp_path / "requests.jsonl"), "--json"])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["tokens"] for line in done.stdout.splitlines()] == alone(opened, given)
    assert "preemption" in done.stderr


def test_the_option(job: Job, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    words = ["gpt2", "--checkpoint", "dummy", "--config", str(tmp_path / "config.json"), "--max-batch-size", "4"]
    done = CliRunner().invoke(cli, ["compile", *words, "--cache-blocks", "4", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "4 blocks of 64 tokens, shared by 4 sequences of 256 tokens" in done.stdout
    refused = CliRunner().invoke(cli, ["compile", *words, "--cache-blocks", "3", "--dry-run"])
    assert (refused.exit_code, "BU024" in refused.stderr) == (2, True)


@pytest.mark.parametrize("target", ["torch", "cpu"])
def test_what_is_closed_reports_it(job: Job, bundle: Path, tmp_path: Path, target: str) -> None:
    """Memory and code of the target `cpu` are gone then: a step would end the process."""
    given = bringup.Request([1, 2], max_new_tokens=2)
    at = bundle
    if target == "cpu":
        at = bringup.build(job, out=tmp_path / "b", target=target, buckets=(32,), max_batch_size=4)
    batch, session = bringup.load_batch(at), bringup.load(at)
    batch.add(given)
    session.prefill([1])
    for each in (batch, session):
        each.close()
        each.close()
    steps = (batch.step, lambda: session.decode(2), lambda: session.prefill([1, 2]), session.reset)
    for step in (*steps, lambda: list(session.generate([1, 2], max_new_tokens=2))):
        with pytest.raises(BringupError, match="BU617: the executor is closed"):
            step()
