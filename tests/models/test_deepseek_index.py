"""The keys that DeepSeek-V3.2's indexer chooses, against brute force in float64; ties at the boundary are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.deepseek_v32 import DeepseekV32Config

from bringup.compile.bisect.eager import Eager
from bringup.compile.job import open_job
from bringup.compile.parity.parity import TOLERANCE, relative
from bringup.compile.parity.reference import Reference
from bringup.graphs.layers import sparse_indexer
from bringup.graphs.ops.topk_keys import top_keys
from tests.models import family, parity
from tests.models.test_deepseek_v3 import save_biased
from tests.models.test_deepseek_v32 import CASES

CLOSE = 1e-5  # of the largest score: sums in another order and dtype


@pytest.fixture(scope="module", params=["few-keys-yarn", "dense-in-the-middle", "two-heads"])
def case(request, tmp_path_factory) -> tuple[Path, DeepseekV32Config]:
    config: Any = CASES.get(request.param)
    if config is None:  # scores of two heads are often 0: ties
        config = DeepseekV32Config.from_dict(CASES["few-keys-yarn"].to_dict() | {"index_n_heads": 2})
    return save_biased(config, tmp_path_factory.mktemp(request.param)), config


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Channel i of the first 2C turns with channel i + C, by one complex product a pair."""
    c = len(cos)
    pairs = (x[..., :c] + 1j * x[..., c : 2 * c]) * (cos + 1j * sin)
    return np.concatenate([pairs.real, pairs.imag, x[..., 2 * c :]], -1)


def brute_force(weights: dict[str, np.ndarray], given: list[Any], heads: int) -> list[np.ndarray]:
    """The scores of each query's visible keys, from what transformers' own indexer was given, token by token."""
    hidden, latent, cos, sin = given
    keys: list[np.ndarray] = []
    found: list[np.ndarray] = []
    for x, q, cosines, sines in zip(hidden, latent, cos, sin, strict=True):
        key = weights["wk.weight"] @ x
        key = (key - key.mean()) / np.sqrt(key.var() + 1e-6) * weights["k_norm.weight"] + weights["k_norm.bias"]
        keys.append(turned(key, cosines, sines))
        queries = turned((weights["wq_b.weight"] @ q).reshape(heads, -1), cosines, sines)
        shares = weights["weights_proj.weight"] @ x * (len(key) * heads) ** -0.5
        found.append(np.array([sum(s * max(h @ k, 0) for s, h in zip(shares, queries, strict=True)) for k in keys]))
    return found


def test_index_sets(case: tuple[Path, DeepseekV32Config], monkeypatch, record_property) -> None:
    """Layer 0: its input is the same for both, so a tie in it cannot spread. Prefill, then token by token."""
    folder, config = case
    chosen: list[torch.Tensor] = []

    def watched(scores_NL: torch.Tensor, positions_N: torch.Tensor, count: int) -> torch.Tensor:
        chosen.append(top_keys(scores_NL, positions_N, count))
        return chosen[-1]

    monkeypatch.setattr(sparse_indexer, "top_keys", watched)
    model: Any = parity.load_reference(folder)
    theirs = model.model.layers[0].self_attn.indexer
    taken: list[Any] = []
    theirs.register_forward_pre_hook(lambda module, args: taken.append((args[0][0], args[1][0], *args[2])))
    tokens = parity.random_tokens(76, config.vocab_size)
    parity.logits_of(model, tokens)
    family.eager_logits(open_job(checkpoint=str(folder)), tokens, 60)
    ours = [row.numpy() for step in chosen[:: config.num_hidden_layers] for row in step]

    half = config.qk_rope_head_dim // 2
    hidden, latent, cos, sin = (part.double().numpy() for part in taken[0])
    given = [hidden, latent, cos[0, :, :half], sin[0, :, :half]]
    weights = {name: value.double().numpy() for name, value in theirs.state_dict().items()}
    exempt = wrong = 0
    for position, scores in enumerate(brute_force(weights, given, config.index_n_heads)):
        own = ours[position][: position + 1]
        count = min(config.index_topk, position + 1)
        assert own.sum() == count
        falling = np.sort(scores)[::-1]
        if count <= position and falling[count - 1] - falling[count] <= CLOSE * np.abs(scores).max():
            exempt += 1
        elif set(np.flatnonzero(own)) != set(np.argsort(-scores)[:count]):
            wrong += 1
    record_property("parity", f"{len(tokens)} index sets: {wrong} wrong, {exempt} exempt")
    assert wrong == 0
    assert exempt <= (len(tokens) // 2 if config.index_n_heads == 2 else 2)


def test_keys_with_equal_scores_are_selected_as_by_the_reference(case: tuple[Path, DeepseekV32Config]) -> None:
    """Logits agree with transformers' if it selects the first of equal keys, and only then."""
    folder, config = case
    tokens = parity.random_tokens(76, config.vocab_size)
    job = open_job(checkpoint=str(folder))
    ours = Eager(job, len(tokens)).whole(tokens)
    reference = Reference(job.checkpoint, job.config, "float32")
    observed = reference.observe(tokens)
    assert relative(ours, observed.logits(tokens)) <= TOLERANCE
    equal = config.index_n_heads == 2
    assert ("equal scores" in observed.name) == equal
    assert (relative(ours, reference.logits(tokens)) > TOLERANCE) == equal


def test_of_keys_that_are_as_good_the_earliest_come_first() -> None:
    random = torch.Generator().manual_seed(0)
    scores = torch.randint(-2, 3, (40, 50), generator=random).float()
    positions = torch.arange(5, 45)
    for count in (1, 7, 30, 64):
        chosen = top_keys(scores, positions, count)
        for row, last, marks in zip(scores.tolist(), positions.tolist(), chosen.tolist(), strict=True):
            best = sorted(range(last + 1), key=lambda key: (-row[key], key))[:count]
            assert {key for key in range(last + 1) if marks[key]} == set(best)
