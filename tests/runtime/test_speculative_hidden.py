"""A draft of DeepSeek's MTP layer: each proposal is that of transformers' layer, fed by transformers' main model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bringup
from bringup.compile.runtime.acceptance import Proposal
from bringup.compile.runtime.speculative import Speculative
from bringup.diagnostics import BringupError
from tests.models import drafts, parity
from tests.models.test_deepseek_mtp import CASES

# So few tokens that a random draft is right now and then.
VOCAB, NEW, CONTEXT, K = 13, 60, 128, 3
PROMPT = parity.random_tokens(20, VOCAB)
CONFIG = copy.deepcopy(CASES["groups-yarn"])
CONFIG.vocab_size, LAYERS = VOCAB, CONFIG.num_hidden_layers
SETTINGS: dict[str, Any] = {"max_seq_len": CONTEXT, "buckets": (32,)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafts.save(CONFIG, tmp_path_factory.mktemp("mtp"))


def compiled(checkpoint: Path, out: Path, target: str, model: str | None, **settings: Any) -> Path:
    job = bringup.open_job(model, str(checkpoint))
    return bringup.build(job, out=out / "b", target=target, **SETTINGS, **settings)


@pytest.fixture(scope="module")
def main(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("main")
    return compiled(checkpoint, out, "torch", None, aux_hidden=[LAYERS], draft_tokens=K)


@pytest.fixture(scope="module")
def draft(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(checkpoint, tmp_path_factory.mktemp("draft"), "torch", "deepseek_mtp", aux_hidden=[1])


def expected(checkpoint: Path, count: int) -> tuple[list[int], list[list[int]], int]:
    """The tokens, the proposals of each step, and how many of them are right; no cache, one forward for each row."""
    model = parity.load_reference(checkpoint)
    layers = model.config.num_hidden_layers

    def forward(tokens: list[int]) -> tuple[int, np.ndarray]:
        with torch.no_grad():
            found = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        return int(found.logits[0, -1].argmax()), found.hidden_states[layers][0].numpy()

    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + NEW:
        tokens.append(forward(tokens)[0])
    states = forward(tokens)[1]
    proposals: list[list[int]] = []
    accepted, end = 0, len(PROMPT) + 1  # tokens that are known before a step
    while end < len(tokens):
        sequence, rows, found = tokens[1:end], states[: end - 1], []
        for _ in range(min(count, len(tokens) - end - 1)):
            logits, hidden = drafts.outputs(checkpoint, sequence, rows)
            found.append(int(logits[-1].argmax()))
            sequence, rows = [*sequence, found[-1]], np.concatenate([rows, hidden[-1:]])
        right = next((n for n, token in enumerate(found) if token != tokens[end + n]), len(found))
        proposals.append(found)
        accepted, end = accepted + right, end + right + 1
    return tokens[len(PROMPT) :], proposals, accepted


def assert_expected(pair: Speculative, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, proposals, accepted = expected(checkpoint, pair.draft_tokens)
    assert len(set(tokens)) > 5
    found: list[list[int]] = []
    propose = pair._proposer.propose

    def recorded(*given: Any) -> list[Proposal]:
        proposed = propose(*given)
        found.append([each.token for each in proposed])
        return proposed

    monkeypatch.setattr(pair._proposer, "propose", recorded)
    for resume in False, True:
        found.clear()
        assert list(pair.generate(PROMPT, max_new_tokens=NEW, resume=resume)) == tokens
        assert found == [each for each in proposals if each]
        stats = pair.stats
        assert (stats.proposed, stats.accepted, stats.steps) == (sum(map(len, proposals)), accepted, len(proposals))
        assert 0 < stats.accepted < stats.proposed


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, K])
def test_proposals(count: int, checkpoint: Path, main: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_expected(Speculative(bringup.load(main), bringup.load(draft), count), checkpoint, monkeypatch)


@pytest.mark.slow
def test_proposals_on_a_cpu(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = compiled(checkpoint, tmp_path / "main", "cpu", None, aux_hidden=[LAYERS], draft_tokens=K)
    draft = compiled(checkpoint, tmp_path / "draft", "cpu", "deepseek_mtp", aux_hidden=[1])
    assert_expected(Speculative(bringup.load(main), bringup.load(draft), K), checkpoint, monkeypatch)


@pytest.mark.slow
def test_one_token_a_step_is_the_default(main: Path, draft: Path) -> None:
    pair = Speculative(bringup.load(main), bringup.load(draft))
    assert pair.draft_tokens == 1
    assert len(list(pair.generate(PROMPT, max_new_tokens=NEW, temperature=1.0, seed=1))) == NEW
    assert 0 < pair.stats.acceptance_rate < 1


@pytest.mark.slow
def test_the_context_of_the_draft_ends_first(checkpoint: Path, main: Path, tmp_path: Path) -> None:
    job = bringup.open_job("deepseek_mtp", str(checkpoint))
    short = bringup.build(job, out=tmp_path / "b", target="torch", max_seq_len=40, buckets=(32,))
    pair = Speculative(bringup.load(main), bringup.load(short), 1)
    tokens = list(bringup.load(main).generate(PROMPT, max_new_tokens=200))
    assert list(pair.generate(PROMPT, max_new_tokens=200)) == tokens
    assert len(tokens) == CONTEXT - len(PROMPT) + 1
    assert 0 < pair.stats.proposed < 20


@pytest.mark.slow
def test_outputs_that_a_bundle_lacks(checkpoint: Path, main: Path, draft: Path, tmp_path: Path) -> None:
    without = bringup.load(compiled(checkpoint, tmp_path / "main", "torch", None, draft_tokens=K))
    with pytest.raises(BringupError, match=rf"BU049.*no output `hidden.{LAYERS}`.*\n.*--aux-hidden {LAYERS}$"):
        Speculative(without, bringup.load(draft))
    alone = bringup.load(compiled(checkpoint, tmp_path / "draft", "torch", "deepseek_mtp"))
    assert Speculative(bringup.load(main), alone).draft_tokens == 1
    with pytest.raises(BringupError, match=r"BU049.*no output `hidden.1`.*2 tokens a step\n.*--aux-hidden 1$"):
        Speculative(bringup.load(main), alone, 2)
    with pytest.raises(BringupError, match=r"BU049.*reads `hidden` besides tokens.*\n.*exchange"):
        Speculative(bringup.load(draft), bringup.load(main))
    message = r"BU049.*reads `hidden`: a batch supports only drafts that read.*\n.*`bringup run`, without --batch$"
    with pytest.raises(BringupError, match=message):
        bringup.load_batch(main, draft=draft, draft_tokens=1)
    second = bringup.load(draft)
    second.manifest["config"]["mtp_depth"] = 2
    with pytest.raises(BringupError, match=r"BU049.*draft 2.*\n.*mtp_depth"):
        Speculative(bringup.load(main), second)
