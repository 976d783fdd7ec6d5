"""The distribution of tokens that are sampled with a draft is the main model's, by chi-square and by definition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from bringup.compile.program.program import Draw
from bringup.compile.program.shares import probabilities_of, token_of
from bringup.compile.runtime.acceptance import Proposal, Sampler
from bringup.compile.runtime.speculative import Speculative
from tests.runtime.exact import logits_of, new_session
from tests.runtime.test_shares import cases

V, K, ROUNDS = 5, 2, 4_000
RARE = 1e-4  # a test with a p-value under this fails; seeds are fixed
SETTINGS = {
    "plain": {"temperature": 1.0, "top_p": 1.0, "top_k": 0},
    "hot-top-k": {"temperature": 1.7, "top_p": 1.0, "top_k": 3},
    "cold-top-p": {"temperature": 0.6, "top_p": 0.8, "top_k": 0},
}
RANDOM = np.random.default_rng(4)
# Logits of the token after each token, [V, V]. Their distributions differ by 0.4 of the probability and more.
MAIN, DRAFT = RANDOM.normal(0, 1.5, (2, V, V)).astype(np.float32)


def defined(logits: np.ndarray, temperature: float, top_p: float, top_k: int) -> np.ndarray:
    """Softmax, restricted to `top_k` tokens and then to the nucleus, in float64."""
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    weights = np.exp((logits[order].astype(np.float64) - float(logits.max())) / temperature)
    weights /= weights.sum()
    inside = np.cumsum(weights) - weights < top_p
    found = np.zeros(len(logits))
    found[order] = np.where(inside, weights, 0)
    return found / found.sum()


@pytest.mark.parametrize("name", SETTINGS)
def test_probabilities(name: str) -> None:
    for logits in RANDOM.normal(0, 3, (50, 40)).astype(np.float32):
        found = probabilities_of(logits, Draw(uniform=0.0, **SETTINGS[name]))
        assert np.abs(found - defined(logits, **SETTINGS[name])).max() < 1e-9


def test_the_tokens_that_can_be_sampled_have_a_probability() -> None:
    """In every case of tests/runtime/test_shares.py, equal and infinite logits among them."""
    for logits, draw in cases():
        found = probabilities_of(logits, draw)
        assert abs(found.sum() - 1) < 1e-12
        assert found[token_of(logits, draw)] > 0
        assert np.count_nonzero(found) <= (draw.top_k or len(logits))


def joint(chain: np.ndarray, name: str) -> np.ndarray:
    """The probability of each K + 1 tokens after token 0, [V] * (K + 1), by definition."""
    rows = np.array([defined(logits, **SETTINGS[name]) for logits in chain])
    return np.einsum("a,ab,bc->abc", rows[0], rows, rows)


def sampled(accept: Callable[[Sampler, np.ndarray, list[Proposal]], list[int]], name: str) -> np.ndarray:
    """How often each K + 1 tokens were sampled in ROUNDS; tokens that a step does not have come from further steps."""
    sampler, counts = Sampler(**SETTINGS[name], random=np.random.default_rng(1)), np.zeros((V,) * (K + 1))
    for _ in range(ROUNDS):
        tokens = [0]
        while len(tokens) <= K + 1:
            proposed: list[Proposal] = []
            while len(proposed) < K:
                proposed.append(sampler.propose(DRAFT[proposed[-1].token if proposed else tokens[-1]]))
            rows = MAIN[[tokens[-1], *(each.token for each in proposed)]]
            tokens += accept(sampler, rows, proposed)
        counts[tuple(tokens[1 : K + 2])] += 1
    return counts


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    possible = probabilities > 0
    assert not counts[~possible].any()
    return chi_square(counts[possible], ROUNDS * probabilities[possible])


def chi_square(observed: np.ndarray, wanted: np.ndarray) -> float:
    """The probability of counts as far from the expected ones, or further: Q((n - 1) / 2, x / 2)."""
    halves = torch.tensor([(len(wanted) - 1) / 2, ((observed - wanted) ** 2 / wanted).sum() / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*halves))


@pytest.mark.parametrize(
    "name", ["plain", *(pytest.param(n, marks=pytest.mark.slow) for n in SETTINGS if n != "plain")]
)
def test_three_tokens_have_the_distribution_of_the_main_model(name: str) -> None:
    assert p_value(sampled(Sampler.accept, name), joint(MAIN, name)) > RARE


@pytest.mark.slow
def test_other_rules_do_not_pass() -> None:
    """To accept everything, and to sample the replacement from the main model's whole distribution."""

    def everything(sampler: Sampler, rows: np.ndarray, proposed: list[Proposal]) -> list[int]:
        return [*(each.token for each in proposed), sampler.token(rows[-1])]

    def whole(sampler: Sampler, rows: np.ndarray, proposed: list[Proposal]) -> list[int]:
        found = sampler.accept(rows, proposed)
        rejected = len(found) <= K or found[0] != proposed[0].token
        return [*found[:-1], sampler.token(rows[len(found) - 1])] if rejected else found

    for rule in everything, whole:
        assert p_value(sampled(rule, "plain"), joint(MAIN, "plain")) < 1e-12


def test_the_first_two_tokens_of_a_sequence() -> None:
    """The whole loop, with a draft that has other logits."""
    main, draft = new_session(), new_session()
    draft.executor.seen = lambda total: 5
    pair, counts, rounds = Speculative(main, draft, 1), np.zeros(30), 1500
    for seed in range(rounds):
        tokens = list(pair.generate([1, 2], max_new_tokens=3, temperature=0.5, seed=seed))
        assert len(tokens) == 3
        counts[tokens[1]] += 1
    first = defined(logits_of([(1, 0), (2, 0)]), 0.5, 1.0, 0)
    then = np.array([defined(logits_of([(1, 0), (2, 0), (token, 0)]), 0.5, 1.0, 0) for token in range(30)])
    wanted = rounds * (first @ then)
    assert wanted.min() > 5
    assert chi_square(counts, wanted) > RARE
    assert pair.main.tokens[:2] == [1, 2]


def test_a_seed_repeats_its_tokens() -> None:
    pair = Speculative(new_session(), new_session(), 3)
    runs = [list(pair.generate([5, 6], max_new_tokens=30, temperature=1.0, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert pair.stats.acceptance_rate == 1.0  # p = q
