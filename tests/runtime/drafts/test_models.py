"""Batches of compiled models with a draft: the tokens are those of the same batch without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import bringup
from bringup.cli.main import cli
from bringup.compile.program.export_options import layout_of
from bringup.compile.runtime.batch import Batch
from bringup.diagnostics import BringupError
from tests.models import parity
from tests.runtime.test_speculative_models import CONFIGS, OTHER, RECURRENT, RINGS, SETTINGS, VOCAB, K

SEQUENCES = 4
Compiled = Callable[..., Path]
PREFIX = parity.random_tokens(70, VOCAB)  # a block, and a part of one


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """A bundle for several sequences, compiled once."""
    folder = tmp_path_factory.mktemp("bundles")

    def of(name: str, target: str, **settings: Any) -> Path:
        if not (folder / name).exists():
            parity.save_checkpoint(CONFIGS.get(name, OTHER), folder / name)
        out = folder / "-".join([name, target, *map(str, settings.values())])
        job = bringup.open_job(checkpoint=str(folder / name))
        return bringup.build(job, out=out, target=target, **{"max_batch_size": SEQUENCES} | SETTINGS | settings)

    return of


def requests() -> list[bringup.Request]:
    random = np.random.default_rng(2)
    found: list[bringup.Request] = []
    for index in range(9):
        own = random.integers(0, VOCAB, random.integers(1, 90)).tolist()
        prompt = [*PREFIX, *own] if index % 3 == 0 else own
        found.append(bringup.Request(prompt, max_new_tokens=int(random.integers(1, 60))))
    return found


def tokens_of(batch: Batch) -> list[list[int]]:
    """Of the requests, of which one joins every other step, and the third is cancelled after its fifth token."""
    waiting, tokens = requests(), dict[int, list[int]]()
    cancelled = False
    while batch or waiting:
        if waiting:
            tokens[batch.add(waiting.pop(0))] = []
        for _ in range(2):
            for event in batch.step():
                tokens[event.id].append(event.token)
        if not cancelled and len(tokens.get(2, ())) >= 5:
            assert batch.remove(2)
            cancelled = True
    assert batch.num_blocks_used == 0
    assert batch.drafts is None or batch.drafts.engine.pool.num_free == batch.drafts.engine.pool.count
    tokens[2] = tokens[2][:5]
    return list(tokens.values())


TARGETS = [
    ("llama", "cpu"), ("llama", "torch"), ("window", "torch"), ("window", "cpu"), ("gemma3", "cpu"),
    ("qwen3_moe", "cpu"), ("qwen3_next", "cpu"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_tokens_are_those_without_a_draft(name: str, target: str, compiled: Compiled) -> None:
    """The draft is the model itself, and another model, for fewer sequences than the main model."""
    bundle, other = compiled(name, target, draft_tokens=K), compiled("other", target, max_batch_size=2)
    with bringup.load_batch(bundle) as plain:
        assert ("ring" in {state.kind for state in plain.interface.states}) is (name in RINGS)
        wanted = tokens_of(plain)
        assert plain.shared_tokens > 0 or name in RINGS | RECURRENT
    with bringup.load_batch(bundle, draft=bundle) as batch:
        assert tokens_of(batch) == wanted
        assert batch.drafts
        assert batch.drafts.stats.acceptance_rate > 0.99
        assert batch.drafts.stats.tokens_per_step > 3
    with bringup.load_batch(bundle, draft=other, draft_tokens=2) as batch:
        assert tokens_of(batch) == wanted
        assert batch.drafts
        assert batch.drafts.stats.acceptance_rate < 0.3
        assert batch.drafts.stats.proposed > 20


def test_what_is_compiled() -> None:
    """For each number of sequences of decode a step of K + 1 tokens of each, and nothing else."""
    job = bringup.open_job("llama", "dummy", config=json.loads(OTHER.to_json_string()))

    def names(**settings: int) -> set[str]:
        return {point.point_name for point in layout_of(job.graph, 512, (32, 256), **settings).entries}

    assert names(draft_tokens=4) - names() == {"prefill_5"}
    plain = names(max_batch_size=8)
    assert names(max_batch_size=8, draft_tokens=4) - plain == {
        "prefill_5",
        "prefill_10_2",
        "prefill_20_4",
        "prefill_40_8",
    }
    assert names(max_batch_size=8, draft_tokens=3) - plain == {"prefill_4", "prefill_8_2", "prefill_16_4"}
    assert names(max_batch_size=6, draft_tokens=4, max_input_len=4) >= {"prefill_5", "prefill_30_6"}
    assert names(draft_tokens=511) - names() == {"prefill_512"}
    for count in -1, 512, 1000:
        with pytest.raises(BringupError, match=r"BU024: .*`draft_tokens`"):
            names(draft_tokens=count)
    message = "`draft_tokens` is 1,000, but the context has 512 tokens.*\n.*reduce it, or increase --max-seq-len"
    with pytest.raises(BringupError, match=message):
        names(draft_tokens=1000)


def test_the_command(compiled: Compiled, tmp_path: Path) -> None:
    """Counts of each request with --json, and a line on stderr for all."""
    bundle, path = compiled("llama", "cpu", draft_tokens=K), tmp_path / "requests.jsonl"
    lines = [{"tokens": PREFIX, "max_new_tokens": 21}, {"tokens": PREFIX[:9], "max_new_tokens": 6}, {"tokens": [3]}]
    path.write_text("\n".join(map(json.dumps, lines)))
    words = ["run", str(bundle), "--batch", str(path), "--max-new-tokens", "1", "--json"]
    plain = [json.loads(line) for line in CliRunner().invoke(cli, words).stdout.splitlines()]
    result = CliRunner().invoke(cli, [*words, "--draft", str(bundle), "--draft-tokens", "3"])
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["tokens"] for each in found] == [each["tokens"] for each in plain]
    assert [each["draft"]["tokens"] for each in found] == [20, 5, 0]
    assert not any("draft" in each for each in plain)
    assert found[0]["draft"]["acceptance_rate"] == 1.0
    steps, proposed = (sum(each["draft"][key] for each in found) for key in ("steps", "proposed"))
    assert (
        f"Accepted {proposed} of {proposed} tokens (100.0%) in {steps} steps of the model, {25 / steps:.2f}"
        in result.stderr
    )
    plain_main = CliRunner().invoke(
        cli, [*words, "--draft", str(compiled("other", "cpu", max_batch_size=2)), "--draft-tokens", "9"]
    )
    assert (plain_main.exit_code, "BU049" in plain_main.stderr) == (2, True)


@pytest.mark.slow
def test_pairs_that_do_not_fit(compiled: Compiled) -> None:
    plain, main = compiled("other", "torch", max_batch_size=2), compiled("llama", "torch", draft_tokens=K)
    with pytest.raises(BringupError, match=r"BU049.*logits of the last token.*\n.*--draft-tokens 4"):
        bringup.load_batch(plain, draft=main)
    with pytest.raises(BringupError, match=r"BU049.*up to 20 tokens, not 24\n.*--draft-tokens 5"):
        bringup.load_batch(main, draft=plain, draft_tokens=5)
    with pytest.raises(BringupError, match=r"BU603"):
        bringup.load_batch(main, draft=plain.parent)
    with pytest.raises(BringupError, match=r"BU024: `draft_tokens` without `draft`\n.*pass the bundle of the draft"):
        bringup.load_batch(main, draft_tokens=3)
