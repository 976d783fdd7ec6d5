"""Requests that join, leave, share blocks and give them up get the tokens that each gets alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.request import Request
from bringup.diagnostics import BringupError
from bringup.graphs.core.step import BLOCK
from tests.runtime.exact import VOCABULARY, collect, expected, finish, new_batch

SYSTEM = [index * 7 % VOCABULARY for index in range(150)]  # two blocks and a part that prompts begin with


def run_joining(batch: Batch, given: Sequence[Request]) -> dict[int, list[int]]:
    """Two steps after each request is added, then the rest. Each gets the tokens of its own run."""
    tokens: dict[int, list[int]] = {}
    for request in given:
        batch.add(request)
        collect(batch, tokens)
        collect(batch, tokens)
    finish(batch, tokens)
    assert tokens == {index: expected(request) for index, request in enumerate(given)}
    assert batch.step() == []
    return tokens


def run_in_any_order(batch: Batch, given: Sequence[Request], data: st.DataObject, **rope: Any) -> None:
    """Steps between requests that are added, and some that are removed, which get a prefix of their tokens."""
    tokens: dict[int, list[int]] = {}
    removed: set[int] = set()
    for request in given:
        batch.add(request)
        for _ in range(data.draw(st.integers(0, 6))):
            collect(batch, tokens)
        if data.draw(st.integers(0, 4)) == 0:
            id = data.draw(st.integers(0, len(given) - 1))
            if batch.remove(id):
                removed.add(id)
    finish(batch, tokens)
    for index, request in enumerate(given):
        wanted, found = expected(request, **rope), tokens.get(index, [])
        assert found == (wanted[: len(found)] if index in removed else wanted)


def requests(count: int, seed: int = 0) -> list[Request]:
    """Of many lengths, half with the same beginning, half drawn from the probabilities."""
    random = np.random.default_rng(seed)
    found: list[Request] = []
    for index in range(count):
        own = random.integers(0, VOCABULARY, random.integers(1, 60)).tolist()
        tokens = [*SYSTEM, *own] if index % 2 else own
        new = int(random.integers(1, 30))
        found.append(Request(tokens, max_new_tokens=new, temperature=index // 2 % 2, seed=index))
    return found


def used(batch: Batch) -> int:
    return batch._engine.pool.count - batch._engine.pool.num_free


def test_those_that_join_later_get_the_tokens_of_their_own_runs() -> None:
    batch = new_batch()
    run_joining(batch, requests(12))
    assert used(batch) == 0


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_order_of_adding_stepping_and_removing(data: st.DataObject) -> None:
    """With so few blocks that requests give theirs up, and programs of any number of sequences."""
    sequences = data.draw(st.integers(1, 5))
    batch = new_batch(sequences, data.draw(st.integers(4, 12)), sizes=data.draw(st.sampled_from([(16,), (32, 128)])))
    run_in_any_order(batch, requests(data.draw(st.integers(1, 9)), data.draw(st.integers(0, 99))), data)
    assert used(batch) == 0


def test_prompts_are_packed_and_decode_takes_the_smallest_entry() -> None:
    batch = new_batch(4)
    for count, new in ((10, 4), (20, 5), (30, 4)):
        batch.add(Request([1] * count, max_new_tokens=new))
    finish(batch)
    assert batch._engine.executor.steps == [  # type: ignore[attr-defined]
        ("prefill_32_4", 3, 32),  # of 60 tokens: the longer entry would be less than half full
        ("decode_2", 2, 2),
        ("prefill_32", 1, 28),
        ("decode_4", 3, 3),
        ("decode_4", 3, 3),
        ("decode_2", 2, 2),
    ]


def test_a_long_prompt_has_an_entry_for_one_sequence() -> None:
    """An entry for several would compute the scores of all its tokens with the keys of each of them."""
    batch = new_batch(4, blocks=32)
    given = [Request([index + 1] * count, max_new_tokens=2) for index, count in enumerate((200, 10, 50, 12))]
    for request in given:
        batch.add(request)
    assert finish(batch) == {index: expected(request) for index, request in enumerate(given)}
    prefills = [step for step in batch._engine.executor.steps if "prefill" in step[0]]  # type: ignore[attr-defined]
    assert prefills == [
        ("prefill_128", 1, 128),  # of 200
        ("prefill_128", 1, 72),  # the rest fills more than half of it
        ("prefill_128_4", 3, 72),
    ]


def test_a_prompt_does_not_keep_others_from_decoding() -> None:
    batch = new_batch(2, sizes=(32,))
    batch.add(Request([1, 2], max_new_tokens=9))
    batch.step()
    batch.add(Request([2] * 200, max_new_tokens=1))
    finish(batch)
    kinds = [name.partition("_")[0] for name, _, _ in batch._engine.executor.steps]  # type: ignore[attr-defined]
    assert kinds[:11] == ["prefill", *["decode", "prefill"] * 5]


# --- blocks that requests share


def test_equal_beginnings_are_computed_once() -> None:
    batch = new_batch(4)
    given = [Request([*SYSTEM, *range(index, index + 9)], max_new_tokens=5) for index in range(4)]
    for request in given:
        batch.add(request)
    assert finish(batch) == {index: expected(request) for index, request in enumerate(given)}
    whole = len(SYSTEM) // BLOCK * BLOCK
    assert batch.shared_tokens == 3 * whole
    assert not batch.unshared
    prefilled = sum(count for name, _, count in batch._engine.executor.steps if "prefill" in name)  # type: ignore[attr-defined]
    assert prefilled == sum(len(list(request.tokens)) for request in given) - 3 * whole


def test_blocks_are_found_after_their_request_is_over_until_they_are_used_again() -> None:
    batch = new_batch(1, blocks=4)
    long = Request(SYSTEM, max_new_tokens=2)
    for shared, request in (
        (0, long),
        (128, long),
        (256, long),
        (256, Request([3] * 250, max_new_tokens=2)),
        (256, long),
    ):
        batch.add(request)
        assert list(finish(batch).values()) == [expected(request)]
        assert batch.shared_tokens == shared


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    batch = new_batch(1)
    for _ in range(2):
        batch.add(Request(SYSTEM[:128], max_new_tokens=3))
        assert list(finish(batch).values()) == [expected(Request(SYSTEM[:128], max_new_tokens=3))]
    assert batch.shared_tokens == 64


def test_states_of_one_sequence_are_not_shared() -> None:
    batch = new_batch(4, kind="sequence")
    for _ in range(3):
        batch.add(Request(SYSTEM, max_new_tokens=2))
    finish(batch)
    assert batch.shared_tokens == 0


# --- blocks that run out


def test_the_youngest_gives_up_its_blocks_and_gets_the_same_tokens() -> None:
    batch = new_batch(3, blocks=4)
    given = [Request([index] * 60, max_new_tokens=60, temperature=1.0, seed=index) for index in range(3)]
    for request in given:
        batch.add(request)
    tokens = finish(batch)
    assert tokens == {index: expected(request) for index, request in enumerate(given)}
    assert batch.preemptions > 0


def test_a_request_longer_than_all_blocks_ends_with_them() -> None:
    batch = new_batch(2, blocks=1)
    batch.add(Request([1] * 60, max_new_tokens=60))
    events = [event for _ in range(6) for event in batch.step()]
    assert len(events) == 5
    assert [event.reason for event in events] == [None] * 4 + ["context"]
    with pytest.raises(BringupError, match="BU016"):
        batch.add(Request([1] * 65, max_new_tokens=1))


# --- sequences whose states depend on how long they are


@pytest.mark.parametrize("kind", ["recompute", "varies"])
@pytest.mark.parametrize("blocks", [16, 5])
def test_rope_by_length(kind: str, blocks: int) -> None:
    """With LongRoPE a sequence is computed again once it is longer than 100 tokens; with dynamic rope it never is."""
    setting = {"recompute": {"recompute": (100,)}, "varies": {"varies": 100}}[kind]
    batch = new_batch(3, blocks, **setting)  # type: ignore[arg-type]
    prompts = [SYSTEM[:90], SYSTEM[:130], SYSTEM[:90], SYSTEM[:100], [*SYSTEM[:128], 5]]
    given = [Request(prompt, max_new_tokens=50, seed=9, temperature=1.0) for prompt in prompts]
    for request in given:
        batch.add(request)
    assert finish(batch) == {index: expected(request, **setting) for index, request in enumerate(given)}  # type: ignore[arg-type]
    assert batch.shared_tokens > 0
    assert (batch.preemptions > 0) is (blocks == 5)
