"""A batch on a program that was compiled: each request gets the tokens of its own run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import bringup
from bringup.cli.main import cli
from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.blocks import BlockPool
from bringup.graphs.gpt2 import SIZES

TINY = SIZES["gpt2"] | {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 256, "vocab_size": 67}
SHARED = np.random.default_rng(5).integers(0, 67, 140).tolist()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch")
    (folder / "config.json").write_text(json.dumps(TINY))
    job = bringup.open_job("gpt2", "dummy", config=str(folder / "config.json"))
    return bringup.build(job, out=folder / "b", target="torch", buckets=(32,), max_batch_size=4)


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


def alone(bundle: Path, given: list[bringup.Request]) -> list[list[int]]:
    session = bringup.load(bundle)
    found: list[list[int]] = []
    for each in given:
        settings = {"max_new_tokens": each.max_new_tokens, "temperature": each.temperature, "seed": each.seed}
        found.append(list(session.generate(each.tokens, **settings)))
    return found


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


@pytest.mark.parametrize("steps", [0, 3])
def test_requests_that_join_at_different_steps(bundle: Path, steps: int) -> None:
    given = requests(8, [])
    batch = bringup.load_batch(bundle)
    assert finish(batch, given, steps or 1) == alone(bundle, given)
    assert batch.shared_tokens == batch.preemptions == 0


def test_a_prefix_is_computed_once(bundle: Path) -> None:
    given = requests(6, SHARED)
    batch = bringup.load_batch(bundle)
    assert finish(batch, given, 2) == alone(bundle, given)
    assert batch.shared_tokens == 5 * 128


def test_blocks_that_run_out(bundle: Path) -> None:
    given = [bringup.Request(SHARED[at : at + 60], max_new_tokens=20, temperature=1.0, seed=at) for at in range(5)]
    batch = bringup.load_batch(bundle)
    batch._engine.pool = BlockPool(4)
    assert finish(batch, given, 1) == alone(bundle, given)
    assert batch.preemptions > 0


def test_the_command(bundle: Path, tmp_path: Path) -> None:
    given = requests(6, [])
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
    done = CliRunner().invoke(cli, ["run", str(bundle), "--batch", str(tmp_path / "requests.jsonl"), "--json"])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["tokens"] for line in done.stdout.splitlines()] == alone(bundle, given)
