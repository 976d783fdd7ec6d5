"""Requests with different LoRAs in one batch: each gets the tokens of its single run, which are peft's."""

from __future__ import annotations

import numpy as np
import pytest

from bringup.compile.runtime.batch import Batch, load_batch
from bringup.compile.runtime.drafts import Drafts
from bringup.compile.runtime.lora import loras as loras_file
from bringup.compile.runtime.lora.loras import Loras
from bringup.compile.runtime.lora.weights import LoraFactors, LoraWeights
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import Session
from bringup.diagnostics import BringupError
from bringup.graphs.core.step import BLOCK
from tests.runtime.lora.bases import prompts
from tests.runtime.lora.conftest import SLOTS

NEW = 6
CHOICES = ["plain", None, "one", "stable", "layer", -1, "mixed", "plain"]  # 5 LoRAs, and two requests without


def ran(batch: Batch, requests: list[Request]) -> list[list[int]]:
    ids = [batch.add(request) for request in requests]
    tokens: dict[int, list[int]] = {number: [] for number in ids}
    while batch:
        for event in batch.step():
            tokens[event.id].append(event.token)
    return [tokens[number] for number in ids]


@pytest.fixture(scope="module")
def opened(bundle) -> Batch:
    return load_batch(bundle)


@pytest.fixture
def batch(opened) -> Batch:
    """A batch without LoRAs, on an executor that the tests share."""
    opened.executor.reset()
    return Batch(opened._opened)


def test_eight_requests_with_five_loras_and_two_without(llama, batch):
    session = Session(batch._opened)
    sent = {name: batch.read_lora(folder) for name, folder in llama.loras.items()}
    given = prompts(len(CHOICES))
    first = {name: CHOICES.index(name) for name in sent}
    requests = [
        Request(
            tokens, max_new_tokens=NEW, lora=choice,
            lora_weights=sent[choice] if choice in sent and first[choice] == index else None,
        )
        for index, (tokens, choice) in enumerate(zip(given, CHOICES, strict=True))
    ]  # fmt: skip
    single = []
    for tokens, choice in zip(given, CHOICES, strict=True):
        session.use_lora(choice, sent.get(choice))
        single.append(list(session.generate(tokens, max_new_tokens=NEW)))
    batch.executor.reset()
    batch = Batch(batch._opened)
    assert ran(batch, requests) == single
    pefts = [llama.continued(c if c in sent else None, t, NEW) for t, c in zip(given, CHOICES, strict=True)]
    assert single == pefts
    base = [llama.continued(None, tokens, NEW) for tokens in given]
    differ = [ours != plain for ours, plain in zip(single, base, strict=True)]
    assert not differ[1]
    assert not differ[5]
    assert sum(differ) >= 5, "the LoRAs change what comes out"
    figures = batch.loras.figures()
    assert (figures.device.entries, figures.device.pinned, figures.host.pinned) == (SLOTS, 0, 0)
    assert figures.device.evictions >= 2
    assert figures.host.entries == 5


def test_a_draft_without_loras(llama, batch, bundle):
    """It proposes the tokens of the base model, and the tokens are peft's."""
    drafts = Drafts(batch._opened, load_batch(bundle)._opened, 3)
    batch = Batch(batch._opened, drafts=drafts)
    for name, folder in llama.loras.items():
        batch.loras.add(name, batch.read_lora(folder))
    given = prompts(len(CHOICES))
    requests = [Request(tokens, max_new_tokens=NEW, lora=c) for tokens, c in zip(given, CHOICES, strict=True)]
    loras = [choice if choice in llama.loras else None for choice in CHOICES]
    assert ran(batch, requests) == [llama.continued(c, tokens, NEW) for c, tokens in zip(loras, given, strict=True)]
    assert 0 < drafts.stats.accepted < drafts.stats.proposed
    assert drafts.engine.pool.num_free == drafts.engine.pool.count


def test_requests_share_blocks_with_those_of_their_lora_only(llama, batch):
    """The keys and values of a block are those of one LoRA: the fourth request finds the first one's."""
    tokens = (prompts(1, seed=5)[0] * BLOCK)[: BLOCK + 5]
    found = []
    for name in ("plain", "one", None, "plain", None):
        before = batch.shared_tokens
        weights = batch.read_lora(llama.loras[name]) if name else None
        found.append((ran(batch, [Request(tokens, max_new_tokens=3, lora=name, lora_weights=weights)]), before))
    counts = [
        after - before
        for (_, before), after in zip(found, [n for _, n in found[1:]] + [batch.shared_tokens], strict=True)
    ]
    assert counts == [0, 0, 0, BLOCK, BLOCK]
    assert found[0][0] == found[3][0] == [llama.continued("plain", tokens, 3)]
    assert found[2][0] == found[4][0] == [llama.continued(None, tokens, 3)]


def test_requests_wait_for_a_slot(llama, batch, monkeypatch):
    """Two LoRAs and one slot: the requests run one after the other, and a third without a LoRA keeps its turn."""
    monkeypatch.setattr(loras_file, "available_bytes", lambda: batch.loras.slots.slot_bytes)
    alone = Batch(batch._opened, Loras(batch.interface, batch.executor, fraction=1.0))
    requests = [
        Request(tokens, max_new_tokens=4, lora=name, lora_weights=name and alone.read_lora(llama.loras[name]))
        for tokens, name in zip(prompts(3, seed=9), ("plain", "one", None), strict=True)
    ]
    wanted = [llama.continued(request.lora, request.tokens, 4) for request in requests]
    assert ran(alone, requests) == wanted
    figures = alone.loras.figures().device
    assert (figures.limit, figures.evictions) == (1, 1)


def test_a_lora_is_in_use_until_its_request_ends(llama, batch):
    weights = batch.read_lora(llama.loras["plain"])
    number = batch.add(Request([1, 2, 3], max_new_tokens=4, lora="plain", lora_weights=weights))
    assert batch.loras.figures().host.pinned == weights.nbytes
    assert batch.loras.figures().device.pinned == 0, "it waits"
    batch.step()
    assert batch.loras.figures().device.pinned == 1
    batch.remove(number)
    figures = batch.loras.figures()
    assert (figures.host.pinned, figures.device.pinned) == (0, 0)
    batch.add(Request([1, 2, 3], max_new_tokens=1, lora="plain"))
    batch.step()
    assert (batch.loras.figures().device.hits, batch.loras.figures().device.misses) == (1, 1)


def test_a_step_that_fails_gives_slots_back(llama, batch, monkeypatch):
    batch.loras.add("plain", batch.read_lora(llama.loras["plain"]))
    wanted = ran(batch, [Request([5, 6, 7], max_new_tokens=3, lora="plain")])
    batch.add(Request([5, 6, 7], max_new_tokens=3, lora="plain"))
    with monkeypatch.context() as patch:
        patch.setattr(batch.executor, "step", lambda entry, step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batch.step()
    assert batch.loras.figures().device.pinned == 0
    got = []
    while batch:
        got += [event.token for event in batch.step()]
    assert [got] == wanted


def code_of(call, *args, **named) -> str:
    with pytest.raises(BringupError) as caught:
        call(*args, **named)
    (found,) = {finding.code for finding in caught.value.findings}
    return found


def factors(rank: int, inputs: int, outputs: int, value: float = 1.0) -> LoraFactors:
    return LoraFactors(np.full((rank, inputs), value, np.float32), np.full((rank, outputs), value, np.float32))


Q, NORM = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"


@pytest.mark.parametrize(
    ("given", "message", "help"),
    [
        ({Q: factors(9, 32, 32)}, "its rank is 9, and the bundle's slots have 8", "--max-lora-rank 9 "),
        ({NORM: factors(2, 32, 1)}, "the bundle has no slots for it", ",norm,"),
        (
            {Q: factors(2, 64, 64)},
            r"its factors are for \[64, 64\], but the parameter is \[32, 32\]",
            "bringup lora check",
        ),
        ({Q: factors(2, 32, 32, float("nan"))}, "its factors have NaN or infinity", "--dtype"),
        ({}, "it has no factors", "bringup lora check"),
    ],
)
def test_what_does_not_fit_is_refused_with_one_code(batch, given, message, help):
    request = Request([1, 2], max_new_tokens=1, lora=7, lora_weights=LoraWeights(given))
    with pytest.raises(BringupError, match=f"the LoRA `7` does not fit the bundle.*{message}") as caught:
        batch.add(request)
    assert [finding.code for finding in caught.value.findings] == ["BU622"]
    assert help in caught.value.findings[0].help
    assert len(batch) == 0
    assert batch.loras.figures().host.entries == 0


def test_an_unknown_id_is_refused_before_anything_runs(batch):
    for task in ("french", 12):
        assert code_of(batch.add, Request([1, 2], max_new_tokens=1, lora=task)) == "BU620"
    assert code_of(batch.add, Request([1, 2], max_new_tokens=1, lora=-2)) == "BU024"
    for lora, weights in ((None, "french"), (7, "french"), (None, LoraWeights({})), (-1, LoraWeights({}))):
        request = Request([1, 2], max_new_tokens=1, lora=lora, lora_weights=weights)
        assert code_of(batch.add, request) == "BU024"
    assert code_of(Session(batch._opened).use_lora, "french") == "BU620"
    assert len(batch) == 0


def test_the_part_of_free_memory_bounds_the_slots(batch, monkeypatch):
    monkeypatch.setattr(loras_file, "available_bytes", lambda: 5 * batch.loras.slots.slot_bytes)

    def limit(fraction: float) -> int:
        return Loras(batch.interface, batch.executor, fraction=fraction).figures().device.limit

    assert (limit(1.0), limit(0.5)) == (SLOTS, 2)
    assert code_of(limit, 0.1) == "BU621"
    assert code_of(limit, 0.0) == "BU024"
