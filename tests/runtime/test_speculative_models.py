"""Speculative decoding of compiled models: the tokens are those without a draft, and those of transformers'."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import (
    Gemma3TextConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

import bringup
from bringup.cli.main import cli
from bringup.compile.runtime.session import Session
from bringup.compile.runtime.speculative import Speculative
from bringup.diagnostics import BringupError
from tests.models import parity
from tests.runtime.test_speculative import Scripted

VOCAB, CONTEXT, NEW, K = 151, 512, 150, 4
PROMPT = parity.random_tokens(50, VOCAB)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "hidden_size": 32, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
# With a window of 16 and steps of 8 tokens a ring has 64 rows: it wraps around several times.
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "window": MistralConfig(**SIZES, sliding_window=16),
    "gemma3": Gemma3TextConfig(
        **SIZES, sliding_window=16, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "qwen3_moe": Qwen3MoeConfig(
        **SIZES, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True
    ),
    "lfm2": Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]),
    "qwen3_next": Qwen3NextConfig(
        **SIZES, full_attention_interval=2, linear_key_head_dim=8, linear_value_head_dim=6, linear_num_key_heads=2,
        linear_num_value_heads=4, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=20,
    ),
    "granitemoehybrid": GraniteMoeHybridConfig(
        **{name: SIZES[name] for name in SIZES if name != "head_dim"}, layer_types=["mamba", "attention"],
        mamba_n_heads=8, mamba_d_head=8, mamba_d_state=16, mamba_n_groups=2, num_local_experts=0,
        shared_intermediate_size=40, position_embedding_type="rope",
    ),
}  # fmt: skip
OTHER = LlamaConfig(**SIZES | {"hidden_size": 24, "num_hidden_layers": 1})
RINGS = {"window", "gemma3"}
RECURRENT = {"lfm2", "qwen3_next", "granitemoehybrid"}
SETTINGS: dict[str, Any] = {"max_seq_len": CONTEXT, "buckets": (8,)}
Compiled = Callable[..., Path]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of one of CONFIGS or of OTHER, written once."""
    folder, written = tmp_path_factory.mktemp("checkpoints"), set[str]()

    def of(name: str) -> Path:
        if name not in written:
            written.add(name)
            parity.save_checkpoint(CONFIGS.get(name, OTHER), folder / name)
        return folder / name

    return of


@pytest.fixture(scope="module")
def compiled(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """A bundle, compiled once."""
    folder = tmp_path_factory.mktemp("bundles")

    def of(name: str, target: str, **settings: Any) -> Path:
        out = folder / "-".join([name, target, *map(str, settings.values())])
        job = bringup.open_job(checkpoint=str(checkpoint(name)))
        return bringup.build(job, out=out, target=target, **SETTINGS | settings)

    return of


def wanted(session: Session) -> list[int]:
    """The tokens without a draft. Their margins are far above the rounding of float32."""
    tokens = list(session.generate(PROMPT, max_new_tokens=NEW))
    assert len(tokens) == NEW
    assert len(set(tokens)) > 20
    return tokens


TARGETS = [
    ("window", "cpu"),
    *(
        pytest.param(name, target, marks=pytest.mark.slow)
        for name, targets in {
            "llama": ("torch", "cpu", "schedule"), "window": ("torch",), "gemma3": ("torch", "cpu", "iree-cpu"),
            "qwen3_moe": ("torch", "cpu"), "lfm2": ("cpu",), "qwen3_next": ("torch", "cpu", "iree-cpu"),
            "granitemoehybrid": ("torch", "cpu"),
        }.items()
        for target in targets
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_tokens_are_those_without_a_draft(name: str, target: str, compiled: Compiled) -> None:
    """The draft is the model itself, another model, and a script with 0 to K accepted tokens in a step."""
    bundle = compiled(name, target, draft_tokens=K)
    with bringup.load(bundle) as plain, bringup.load(bundle) as main, bringup.load(bundle) as itself:
        kinds = {state.kind for state in main.interface.states}
        assert ("ring" in kinds, "sequence" in kinds) == (name in RINGS, name in RECURRENT)
        tokens = wanted(plain)
        pair = Speculative(main, itself, K)
        assert list(pair.generate(PROMPT, max_new_tokens=NEW)) == tokens
        assert (pair.stats.acceptance_rate, pair.stats.steps) == (1.0, NEW // (K + 1))

        with bringup.load(compiled("other", target)) as draft:
            pair = Speculative(main, draft, K)
            assert list(pair.generate(PROMPT, max_new_tokens=NEW)) == tokens
            assert pair.stats.acceptance_rate < 0.2

        pair._proposer = Scripted([*PROMPT, *tokens], lambda step: step * 3 % (K + 1))
        assert list(pair.generate(PROMPT, max_new_tokens=NEW)) == tokens
        assert pair.stats.acceptance_rate == pytest.approx(0.5, abs=0.1)
        assert list(main.tokens) == list(plain.tokens)
        after, expected = (session.decode(tokens[-1]) for session in (main, plain))
        assert np.abs(after - expected).max() <= parity.TOLERANCE["float32"] * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", *sorted(RECURRENT)])
def test_tokens_are_those_of_generation(name: str, checkpoint: Callable[[str], Path], compiled: Compiled) -> None:
    """transformers' `generate`, greedy, with `assistant_model` if the model supports one."""
    theirs, assistant = (parity.load_reference(checkpoint(each)) for each in (name, "other"))
    prompt = torch.tensor([PROMPT])
    found = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), assistant_model=None if name in RECURRENT else assistant,
        do_sample=False, max_new_tokens=NEW,
    )  # fmt: skip
    with (
        bringup.load(compiled(name, "torch", draft_tokens=K)) as main,
        bringup.load(compiled("other", "torch")) as draft,
    ):
        assert list(Speculative(main, draft).generate(PROMPT, max_new_tokens=NEW)) == found[0, len(PROMPT) :].tolist()


def test_the_command(compiled: Compiled) -> None:
    """Tokens and counts on stdout with --json, and a line on stderr."""
    bundle, draft = compiled("llama", "cpu", draft_tokens=K), compiled("other", "cpu")
    words = ["run", str(bundle), "--tokens", ",".join(map(str, PROMPT)), "--max-new-tokens", "40", "--json"]
    plain = json.loads(CliRunner().invoke(cli, words).stdout)
    assert "draft" not in plain
    result = CliRunner().invoke(cli, [*words, "--draft", str(bundle), "--draft-tokens", "3"])
    found = json.loads(result.stdout)
    assert found["tokens"] == plain["tokens"]
    assert found["draft"] == {
        "steps": 10, "proposed": 29, "accepted": 29, "tokens": 39, "acceptance_rate": 1.0, "tokens_per_step": 3.9,
    }  # fmt: skip
    assert "Accepted 29 of 29 tokens (100.0%) in 10 steps of the model, 3.90 tokens a step" in result.stderr
    result = CliRunner().invoke(cli, [*words, "--draft", str(draft)])
    found = json.loads(result.stdout)
    assert found["tokens"] == plain["tokens"]
    assert found["draft"]["tokens"] == 39
    assert found["draft"]["acceptance_rate"] == found["draft"]["accepted"] / found["draft"]["proposed"] < 0.2


def test_options_that_do_not_fit() -> None:
    for words in (["run", "a.bundle", "--prompt", "a"], ["run", "a.bundle", "--batch", "c"], ["serve", "a.bundle"]):
        result = CliRunner().invoke(cli, [*words, "--draft-tokens", "2"])
        assert result.exit_code == 2
        assert "--draft-tokens needs --draft BUNDLE" in result.stderr


@pytest.mark.slow
def test_bundles_that_do_not_fit(compiled: Compiled, tmp_path: Path) -> None:
    with pytest.raises(BringupError, match=r"BU024.*draft_tokens"):
        compiled("llama", "torch", draft_tokens=-1)
    main = bringup.load(compiled("llama", "torch", draft_tokens=K))
    last = bringup.load(compiled("other", "torch"))
    with pytest.raises(BringupError, match=r"BU049.*logits of the last token.*\n.*--draft-tokens 3"):
        Speculative(last, main, 3)
    with pytest.raises(BringupError, match=r"BU049.*up to 8 tokens, not 10\n.*--draft-tokens 9"):
        Speculative(main, last, 9)
    with pytest.raises(BringupError, match=r"BU049.*one session\n.*load the bundle twice"):
        Speculative(main, main)
    config = {**json.loads(OTHER.to_json_string()), "architectures": ["LlamaForCausalLM"], "vocab_size": 150}
    small = bringup.build(
        bringup.open_job("llama", "dummy", config=config), out=tmp_path / "b", target="torch", **SETTINGS
    )
    with pytest.raises(BringupError, match=r"BU049.*150 tokens.*151\n.*the same vocabulary"):
        Speculative(main, bringup.load(small))


@pytest.mark.slow
def test_a_ring_of_the_draft_limits_the_proposals(compiled: Compiled) -> None:
    """The draft's ring has 64 rows, 16 of which are in its window."""
    main = bringup.load(compiled("llama", "cpu", draft_tokens=60))
    draft = bringup.load(compiled("window", "cpu"))
    tokens = wanted(bringup.load(compiled("llama", "cpu", draft_tokens=60)))
    pair = Speculative(main, draft, 49)
    assert list(pair.generate(PROMPT, max_new_tokens=NEW)) == tokens
    assert pair.stats.proposed / pair.stats.steps > 40
    with pytest.raises(BringupError, match=r"BU049.*remove 49 tokens, not 50.*\n.*--draft-tokens 49"):
        Speculative(main, draft, 50)
