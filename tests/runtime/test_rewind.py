"""A session that goes back to an earlier token gives what a new one gives, whatever it held in the meantime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import Session, load

SMALL = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 16, "intermediate_size": 24,
    "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 97,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "sliding_window": 16,
}  # fmt: skip
CLOSE = 1e-5  # largest |difference| over largest |reference|: a prompt comes in other parts
TOKENS = np.random.default_rng(0).integers(0, 97, 400).tolist()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = open_job("llama", "dummy", config=SMALL)
    return build(job, out=tmp_path_factory.mktemp("b") / "b", target="torch", max_seq_len=512, buckets=(8,))


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of sequences longer than 64 tokens rope goes by their length (Llama, rope type dynamic)."""
    words = {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 64}
    config = {key: value for key, value in SMALL.items() if key != "sliding_window"} | words
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    job = open_job("llama", "dummy", config=config)
    assert job.graph.states_vary_past() == 64
    return build(job, out=tmp_path_factory.mktemp("d") / "b", target="torch", max_seq_len=256, buckets=(32,))


@pytest.mark.parametrize("before", [200, 60])
def test_states_of_dynamic_rope_are_computed_again(dynamic: Path, before: int) -> None:
    """Keys of a sequence of 200 tokens do not fit the queries of one of 50; those of one of 60 do."""
    session, fresh = load(dynamic), load(dynamic)
    for prompt in ([*TOKENS[:40], *range(10)], [*TOKENS[:40], 7, 8]):
        list(session.generate(TOKENS[:before], max_new_tokens=1))
        ours, wanted = taken(session, prompt, resume=True), taken(fresh, prompt, resume=False)
        assert np.abs(ours - wanted).max() <= CLOSE * np.abs(wanted).max()
        assert session.stats.prefill_tokens == (len(prompt) if before > 64 else len(prompt) - 40)


@pytest.mark.parametrize("before", [80, 60])
def test_states_of_dynamic_rope_are_those_of_the_next_prompt(dynamic: Path, before: int) -> None:
    """Keys of a sequence of 60 tokens, or of 80, do not fit the queries of one of 100 that continues it."""
    session, fresh = load(dynamic), load(dynamic)
    list(session.generate(TOKENS[:before], max_new_tokens=1))
    prompt = [*TOKENS[:before], *range(100 - before)]
    ours, wanted = taken(session, prompt, resume=True), taken(fresh, prompt, resume=False)
    assert np.abs(ours - wanted).max() <= CLOSE * np.abs(wanted).max()


def taken(session: Session, prompt: list[int], *, resume: bool) -> np.ndarray:
    """Logits of the token after a prompt."""
    assert list(session.generate(prompt, max_new_tokens=1, resume=resume))
    return session.decode(3)


def test_a_ring_is_rewound_from_the_longest_that_it_held(bundle: Path) -> None:
    """300 tokens, then 257, then 228: each step back is short, both together lose what the window needs."""
    session, fresh = load(bundle), load(bundle)
    assert session.interface.rewindable is not None
    list(session.generate(TOKENS[:300], max_new_tokens=1))
    list(session.generate([*TOKENS[:256], 5], max_new_tokens=1, resume=True))
    for prompt in ([*TOKENS[:225], 7, 8, 9], [*TOKENS[:200], 1], [*TOKENS[:199], 4, 5]):
        ours, wanted = taken(session, prompt, resume=True), taken(fresh, prompt, resume=False)
        assert np.abs(ours - wanted).max() <= CLOSE * np.abs(wanted).max()
