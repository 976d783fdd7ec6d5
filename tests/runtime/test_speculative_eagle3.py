"""EAGLE-3 heads as drafts: each proposal is that of the published formulas, fed by transformers' main model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import LlamaConfig

import bringup
from bringup.cli.main import cli
from bringup.compile.runtime.acceptance import Proposal
from bringup.compile.runtime.pair import state_numbers
from bringup.compile.runtime.speculative import DRAFT_TOKENS, Speculative
from bringup.diagnostics import BringupError
from tests.models import heads, parity

# So few tokens that a random head is right now and then; so many layers that the default states differ.
VOCAB, DRAFTED, NEW, CONTEXT, K, LAYERS, WIDTH = 13, 11, 60, 128, 3, 8, 24
STATES = 2, 4, 5
PROMPT = parity.random_tokens(20, VOCAB)
MAIN = LlamaConfig(
    vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=3,
    num_key_value_heads=3, max_position_embeddings=256,
)  # fmt: skip
HEAD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "draft_vocab_size": DRAFTED,
    "hidden_size": WIDTH, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 128,
    "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
SETTINGS: dict[str, Any] = {"max_seq_len": CONTEXT, "buckets": (32,)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parity.save_checkpoint(MAIN, tmp_path_factory.mktemp("main"))


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return heads.save(HEAD, tmp_path_factory.mktemp("head") / "head")


def compiled(checkpoint: Path, out: Path, target: str = "torch", model: str | None = None, **settings: Any) -> Path:
    job = bringup.open_job(model, str(checkpoint))
    return bringup.build(job, out=out / "b", target=target, **SETTINGS, **settings)


@pytest.fixture(scope="module")
def main(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(checkpoint, tmp_path_factory.mktemp("b"), aux_hidden=STATES, draft_tokens=DRAFT_TOKENS)


@pytest.fixture(scope="module")
def draft(head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(head, tmp_path_factory.mktemp("b"), model="eagle3")


@cache
def greedy(checkpoint: Path) -> tuple[list[int], list[np.ndarray]]:
    """The prompt and the tokens after it, and the hidden state of each after 0, 1, … layers; no cache."""
    model = parity.load_reference(checkpoint)

    def forward(tokens: list[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)

    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + NEW:
        tokens.append(int(forward(tokens).logits[0, -1].argmax()))
    return tokens, [state[0].numpy() for state in forward(tokens).hidden_states]


def expected(
    head: Path, tokens: list[int], states: list[np.ndarray], count: int, read: Sequence[int] = STATES,
    longest: int = CONTEXT,
) -> tuple[list[list[int]], int]:  # fmt: skip
    """The proposals of each step, to sequences of up to `longest` tokens, and how many of them are right."""
    hidden = np.concatenate([states[number] for number in read], -1)
    proposals: list[list[int]] = []
    accepted, end = 0, len(PROMPT) + 1  # tokens that are known before a step
    while end < len(tokens):
        sequence, found = tokens[1:end], []
        rows, own = hidden[: end - 1], np.zeros((end - 1, WIDTH), np.float32)
        for _ in range(min(count, len(tokens) - end - 1, longest - end)):
            logits, last = heads.outputs(head, sequence, rows, own)
            found.append(int(logits[-1].argmax()))
            sequence = [*sequence, found[-1]]
            rows, own = np.pad(rows, ((0, 1), (0, 0))), np.concatenate([own, last[-1:]])
        right = next((n for n, token in enumerate(found) if token != tokens[end + n]), len(found))
        proposals.append(found)
        accepted, end = accepted + right, end + right + 1
    return proposals, accepted


def proposed(pair: Speculative, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[list[int]]]:
    """The new tokens, and the proposals of each step."""
    found: list[list[int]] = []
    propose = pair._proposer.propose

    def recorded(*given: Any) -> list[Proposal]:
        each = propose(*given)
        found.append([proposal.token for proposal in each])
        return each

    monkeypatch.setattr(pair._proposer, "propose", recorded)
    return list(pair.generate(PROMPT, max_new_tokens=NEW)), found


def assert_expected(pair: Speculative, checkpoint: Path, head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, states = greedy(checkpoint)
    assert len(set(tokens[len(PROMPT) :])) > 5
    proposals, accepted = expected(head, tokens, states, pair.draft_tokens)
    for wrong in (tuple(n - 1 for n in STATES), tuple(n + 1 for n in STATES), STATES[::-1]):
        first = expected(head, tokens[: len(PROMPT) + 20], states, pair.draft_tokens, wrong)[0][:5]
        assert first != proposals[:5]  # this test can see them
    new, found = proposed(pair, monkeypatch)
    assert new == tokens[len(PROMPT) :]
    assert found == [each for each in proposals if each]
    stats = pair.stats
    assert (stats.proposed, stats.accepted, stats.steps) == (sum(map(len, proposals)), accepted, len(proposals))
    assert 0 < stats.accepted < stats.proposed


def test_proposals(checkpoint: Path, head: Path, main: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_expected(Speculative(bringup.load(main), bringup.load(draft), K), checkpoint, head, monkeypatch)


@pytest.mark.slow
def test_a_head_whose_rope_changes(
    checkpoint: Path, main: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LongRoPE from 41 tokens on. The head has no inputs of earlier tokens, which it would then compute again."""
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.4, 1.6, 2.0], "long_factor": [1.5] * 6}
    raw = HEAD | {"rope_scaling": scaling, "original_max_position_embeddings": (length := 40)}
    head = heads.save(raw, tmp_path / "head")
    draft = compiled(head, tmp_path, model="eagle3")
    pair = Speculative(bringup.load(main), bringup.load(draft), K)
    tokens, states = greedy(checkpoint)
    proposals, _ = expected(head, tokens, states, K, longest=length)
    new, found = proposed(pair, monkeypatch)
    assert new == tokens[len(PROMPT) :]
    assert found == [each for each in proposals if each]
    assert pair._proposer._rows is None  # type: ignore[attr-defined]
    plain = bringup.load(main)
    for count in range(length - 2, length + 3):
        settings = {"tokens": tokens[:count], "max_new_tokens": 9}
        assert list(pair.generate(**settings)) == list(plain.generate(**settings))
        # With 38 tokens it proposes the 40th, and ends. With more, its sequence begins with the other rope.
        assert (pair.stats.proposed == 1) == (count == length - 2), count


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "iree-cpu"])
def test_proposals_of_other_targets(
    target: str, checkpoint: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = compiled(checkpoint, tmp_path / "main", target, aux_hidden=STATES, draft_tokens=K)
    draft = compiled(head, tmp_path / "draft", target, "eagle3")
    assert_expected(Speculative(bringup.load(main), bringup.load(draft), K), checkpoint, head, monkeypatch)


def test_the_default_number_and_sampling(main: Path, draft: Path) -> None:
    """Tokens that the head never proposes are sampled too."""
    pair = Speculative(bringup.load(main), bringup.load(draft))
    assert pair.draft_tokens == DRAFT_TOKENS
    tokens = list(pair.generate(PROMPT, max_new_tokens=100, temperature=1.5, seed=1))
    assert len(tokens) == 100
    assert set(tokens) == set(range(VOCAB))
    assert 0 < pair.stats.acceptance_rate < 1


NEXT = [5, 3, 8, 12, 0, 9, 1, 4, 10, 7, 11, 6, 2]  # the token after each; one cycle


def following(folder: Path) -> Path:
    """A main model whose next token is NEXT of the last one: its layers add nothing."""
    model = parity.load_reference(parity.save_checkpoint(MAIN, folder))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.norm.weight.fill_(1)
        model.model.embed_tokens.weight.copy_(torch.eye(VOCAB, WIDTH))
        model.lm_head.weight.zero_()
        model.lm_head.weight[NEXT, range(VOCAB)] = 1
    model.save_pretrained(folder)
    return folder


def foreseeing(folder: Path, tokens: Sequence[int]) -> Path:
    """A head that proposes NEXT of the last token, if that is among `tokens`.

    Queries and keys are constants, so that rope makes each token attend to itself; its value is added to the
    normalised hidden state, a hundred times as large.
    """
    raw = HEAD | {"draft_vocab_size": len(tokens), "attention_bias": True, "norm_before_residual": True}
    tensors = heads.random_tensors(raw, "float32", layer="midlayer.", embedding=False, seed=2)
    layer = "midlayer."
    for name in "qkvo":
        tensors[f"{layer}self_attn.{name}_proj.weight"].zero_()
        tensors[f"{layer}self_attn.{name}_proj.bias"].fill_(9 if name in "qk" else 0)
    tensors[f"{layer}mlp.down_proj.weight"].zero_()
    for name in ("norm", f"{layer}input_layernorm"):
        tensors[f"{name}.weight"].fill_(1)
    channels = range(WIDTH // 2)  # of the one key head: as many as tokens, but for one
    tensors[f"{layer}self_attn.v_proj.weight"][channels, channels] = 1
    tensors[f"{layer}self_attn.o_proj.weight"][channels, channels] = 100
    tensors["lm_head.weight"] = torch.zeros(len(tokens), WIDTH)
    for row, token in enumerate(tokens):
        tensors["lm_head.weight"][row, NEXT.index(token)] = 1
    tensors["d2t"] = torch.tensor(tokens) - torch.arange(len(tokens))
    tensors["t2d"] = torch.isin(torch.arange(len(tensors["t2d"])), torch.tensor(tokens))
    return heads.write(folder, tensors, raw)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["torch", "cpu"])
def test_a_head_that_is_right(target: str, tmp_path: Path) -> None:
    """With the embedding of the main model. It proposes all tokens but 12, and 12's own next, which it cannot know."""
    checkpoint, head = following(tmp_path / "main"), foreseeing(tmp_path / "head", range(12))
    out = str(tmp_path / "b"), str(tmp_path / "d")
    options = ["--target", target, "--max-seq-len", str(CONTEXT)]
    aux = [word for number in STATES for word in ("--aux-hidden", str(number))]
    also = ["--also", f"{checkpoint}:main."]
    for words in (
        ["compile", "--checkpoint", str(checkpoint), "--draft-tokens", "3", *aux, "-o", out[0]],
        ["compile", "eagle3", "--checkpoint", str(head), *also, "-o", out[1]],
    ):
        result = CliRunner().invoke(cli, [*words, *options])
        assert result.exit_code == 0, result.output
    assert f"bringup run MAIN.bundle --draft {out[1]}" in result.output
    words = [
        "run",
        out[0],
        "--draft",
        out[1],
        "--draft-tokens",
        "3",
        "--tokens",
        "0",
        "--max-new-tokens",
        "53",
        "--json",
    ]
    found = json.loads(CliRunner().invoke(cli, words).stdout)
    tokens = [NEXT[0]]
    while len(tokens) < 53:
        tokens.append(NEXT[tokens[-1]])
    assert found["tokens"] == tokens
    stats = found["draft"]
    # A cycle has 13 tokens: two are not foreseen (12, and the one after it), each of which ends a step.
    assert stats["acceptance_rate"] > 0.6
    assert stats["tokens_per_step"] > 2.5


def test_state_numbers() -> None:
    assert state_numbers([2, "middle", -4], 32) == [2, 16, 29]
    assert state_numbers([-1], 61) == [61]
    assert state_numbers([0, 7], 8) == [0, 7]


def test_pairs_that_do_not_fit(checkpoint: Path, main: Path, draft: Path, head: Path, tmp_path: Path) -> None:
    without = bringup.load(compiled(checkpoint, tmp_path / "m", aux_hidden=[2, 5], draft_tokens=K))
    options = "--aux-hidden 2 --aux-hidden 4 --aux-hidden 5"
    with pytest.raises(BringupError, match=rf"BU049.*no output `hidden.4`: the draft reads.*\n.*with {options}$"):
        Speculative(without, bringup.load(draft))
    with pytest.raises(BringupError, match=r"BU049.*reads `hidden`, `own` besides tokens.*\n.*exchange"):
        Speculative(bringup.load(draft), bringup.load(main))
    _, raw = heads.read(head)
    wider = heads.save(raw | {"target_hidden_size": 30}, tmp_path / "wider")
    other = bringup.load(compiled(wider, tmp_path / "w", model="eagle3"))
    with pytest.raises(BringupError, match=r"BU049.*reads 90 channels of hidden states, and `.*` has 24 \+ 24 \+ 24\n"):
        Speculative(bringup.load(main), other)
    deep = bringup.load(draft)
    deep.manifest["main_states"] = [2, "middle", 9]
    with pytest.raises(BringupError, match=r"BU049.*reads hidden states \[2, 4, 9\].*has 8 layers\n"):
        Speculative(bringup.load(main), deep)
