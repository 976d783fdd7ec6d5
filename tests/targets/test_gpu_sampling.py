"""Tokens that are drawn on the device: those of the host, with the fields of a step advanced by the kernels."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bringup.compile.gpu import sampling
from bringup.compile.gpu.driver.driver import Function
from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.gpu.sampling import sampling_of
from bringup.compile.pipeline import build
from bringup.compile.program.program import Draw, TensorSpec
from bringup.compile.runtime.batch import Batch, load_batch
from bringup.compile.runtime.kernel_trial import trial_of
from bringup.compile.runtime.request import Request
from bringup.compile.runtime.session import Session, load
from bringup.diagnostics import BringupError
from tests.runtime import exact
from tests.schedule.models import CONTEXT, PREFILL, job_of
from tests.serve.inside import EOS, serving, text_of
from tests.targets.test_gpu_files import damaged

PROMPT = list(range(1, 61))  # its blocks of 64 tokens: the fifth new token begins another one
NEW = 8
# Temperature, top-p and top-k.
SETTINGS = [(0.0, 1.0, 0), (1.0, 1.0, 0), (0.8, 0.7, 0), (2.0, 1.0, 7), (1.5, 0.8, 20), (3.0, 0.9, 500), (0.0, 1.0, 3)]


class Watched:
    """An executor that notes which draws had a step."""

    def __init__(self, executor: GpuExecutor, largest: int = 0) -> None:
        self.executor, self.largest = executor, largest
        self.had_step: list[bool] = []
        for name in ("step", "reset", "states", "set_states", "can_draw", "can_continue", "close"):
            setattr(self, name, getattr(executor, name))

    def draw(
        self, entry: str, step: Mapping[str, np.ndarray] | None, draws: Sequence[Draw], *, ahead: bool
    ) -> list[int]:
        self.had_step.append(step is not None)
        tokens = self.executor.draw(entry, step, draws, ahead=ahead)
        return [self.largest or token for token in tokens]


def watch(opened: Session | Batch, largest: int = 0) -> Watched:
    assert isinstance(opened.executor, GpuExecutor)
    opened._engine.executor = watched = Watched(opened.executor, largest)
    return watched


def test_tokens_of_a_session(gpu_bundle) -> None:
    """A step is given when a sequence begins, and when it has another block; the rest is on the device."""
    session, wanted = load(gpu_bundle, "emulate"), load(gpu_bundle, "reference")
    watched = watch(session)
    for temperature, top_p, top_k in SETTINGS:
        settings = {"max_new_tokens": NEW, "temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": 5}
        assert list(session.generate(PROMPT, **settings)) == list(wanted.generate(PROMPT, **settings))
    assert watched.had_step == len(SETTINGS) * [True, False, False, False, True, False, False]


def test_a_step_between(gpu_bundle) -> None:
    """Logits after draws, and draws after logits, are those of the same sequence."""
    session, wanted = load(gpu_bundle, "emulate"), load(gpu_bundle, "reference")
    tokens = list(session.generate(PROMPT[:3], max_new_tokens=4))
    assert tokens == list(wanted.generate(PROMPT[:3], max_new_tokens=4))
    assert np.allclose(session.decode(tokens[-1]), wanted.decode(tokens[-1]), atol=1e-5)
    assert list(session.generate(PROMPT[:3], max_new_tokens=3)) == tokens[:3]


def test_steps_ahead(gpu_bundle) -> None:
    """A greedy step is started before it is called for; what comes in between makes no difference to what follows."""
    session, wanted = load(gpu_bundle, "emulate"), load(gpu_bundle, "reference")
    executor = session.executor
    assert isinstance(executor, GpuExecutor)
    for prompt, between in ((PROMPT[:5], []), (PROMPT[:6], [7, 8]), (PROMPT[:5], [9])):
        tokens = list(session.generate(prompt, max_new_tokens=4))
        assert tokens == list(wanted.generate(prompt, max_new_tokens=4))
        assert executor._entries["decode"].ahead is not None
        for token in between:  # a step with another token at the place that was computed ahead
            assert np.allclose(session.decode(token), wanted.decode(token), atol=1e-5)
            assert executor._entries["decode"].ahead is None
    first = list(session.generate(PROMPT[:5], max_new_tokens=3))
    again = list(session.generate([*PROMPT[:5], first[0]], max_new_tokens=6))  # its first draw is the one ahead
    assert again == list(wanted.generate([*PROMPT[:5], first[0]], max_new_tokens=6))
    assert not executor.can_continue("decode", [Draw(1.0, 1.0, 0.5)])
    answer = session.generate(PROMPT[:59], max_new_tokens=8)
    tokens = [next(answer) for _ in range(6)]
    assert executor._entries["decode"].ahead is None  # the next token begins a block
    assert [*tokens, *answer] == list(wanted.generate(PROMPT[:59], max_new_tokens=8))


def test_a_step_that_is_interrupted_before_its_last_launch(gpu_bundle, monkeypatch) -> None:
    """The largest logits of its head are in scratch memory, but no launch has read and cleared them."""
    session, wanted = load(gpu_bundle, "emulate"), load(gpu_bundle, "reference")
    assert isinstance(session.executor, GpuExecutor)
    driver = session.executor._driver
    launch = driver.launch

    def interrupted(function: Function, *arguments: Any, **named: Any) -> None:
        if function.name == "draw":
            raise KeyboardInterrupt
        launch(function, *arguments, **named)

    monkeypatch.setattr(driver, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(session.generate(PROMPT[:5], max_new_tokens=2))
    monkeypatch.undo()
    tokens = list(session.generate(PROMPT[:3], max_new_tokens=2))
    assert tokens == list(wanted.generate(PROMPT[:3], max_new_tokens=2))


def test_another_executor(gpu_bundle) -> None:
    """One that has drawn too, for another sequence, begins with a step of this one."""
    session, second, wanted = load(gpu_bundle, "emulate"), load(gpu_bundle, "emulate"), load(gpu_bundle, "reference")
    list(second.generate(PROMPT[:3], max_new_tokens=3))
    answer = session.generate(PROMPT[:5], max_new_tokens=NEW)
    tokens = [next(answer) for _ in range(3)]
    second.executor.set_states(session.executor.states())
    session.executor = second.executor
    assert [*tokens, *answer] == list(wanted.generate(PROMPT[:5], max_new_tokens=NEW))


def test_a_draft_draws_nothing(gpu_bundle) -> None:
    """What takes hidden states with each token has no next step in a token alone."""
    executor = load(gpu_bundle, "emulate").executor
    assert isinstance(executor, GpuExecutor)
    interface, hidden = executor._interface, TensorSpec(name="hidden", shape=(1, 8), dtype="float32")
    entries = tuple(replace(entry, inputs=(hidden,)) for entry in interface.entries)
    assert set(sampling_of(executor._schedule, interface, "sm_90")) == {"decode"}
    assert not sampling_of(executor._schedule, replace(interface, entries=entries), "sm_90")


def test_a_step_that_draws_has_one_more_launch(gpu_bundle) -> None:
    """The product of the logits is another kernel than in other steps; all other launches are the same."""
    session = load(gpu_bundle, "emulate")
    list(session.generate(PROMPT[:3], max_new_tokens=3))
    assert isinstance(session.executor, GpuExecutor)
    ready = session.executor._entries["decode"]
    for starts in ready.draw_starts:
        assert [each.label for each in starts] == [*(each.label for each in ready.starts), "sampling: draw"]
        assert starts[:-2] == ready.starts[:-1]
        assert starts[-2].function != ready.starts[-1].function


def test_logits_of_a_launch_that_keeps_no_largest(tmp_path, monkeypatch) -> None:
    """As of a graph whose last launch is no product: another launch reads them all."""
    monkeypatch.setattr(sampling, "head_calls_of", lambda *given: None)
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,)}
    bundle = build(job_of("gpt2", tmp_path), out=tmp_path / "b", target="cuda:sm_90", **settings)
    plan = json.loads((bundle / "kernels.json").read_text("utf-8"))
    stems = [plan["kernels"][call["kernel"]]["kernel"]["stem"] for call in plan["sampling"]["decode"]["after"]]
    assert (plan["sampling"]["decode"]["last"], stems) == ([], ["largest", "draw"])
    session, wanted = load(bundle, "emulate"), load(bundle, "reference")
    for temperature in (0.0, 0.8):
        settings = {"max_new_tokens": 4, "temperature": temperature, "top_p": 0.7, "seed": 5}
        assert list(session.generate(PROMPT, **settings)) == list(wanted.generate(PROMPT, **settings))
    rows = trial_of(bundle, entries=["decode"])
    assert [row.kernels for row in rows if row.group == "sampling"] == ["largest draw"]
    assert [finding for row in rows for finding in row.seen.findings] == []


def test_a_damaged_plan(gpu_bundle, tmp_path) -> None:
    """Calls of an entry that draws nothing, of memory that is not there, without `top_k`, and of earlier versions."""
    for number, name in enumerate(("prefill_32", "decode")):

        def change(plan: dict, name: str = name) -> None:
            drawing = plan["sampling"]["decode"]
            drawing["after"][0]["arguments"][0] = ["logits", 10**6]
            plan["sampling"] = {name: drawing}

        with pytest.raises(BringupError, match=r"BU603.*kernels.json"):
            load(damaged(gpu_bundle, tmp_path / str(number), change), "emulate")

    def without(plan: dict) -> None:
        (call,) = plan["sampling"]["decode"]["after"]
        at = call["arguments"].index(["top_k", 0])
        for values in (call["arguments"], plan["kernels"][call["kernel"]]["types"]):
            del values[at]

    def of_another(plan: dict) -> None:
        plan["sampling"]["decode"]["last"][0]["arguments"][0] = ["logits", 0]

    def earlier(plan: dict) -> None:
        plan["sampling"]["decode"] = plan["sampling"]["decode"]["after"]

    said = {
        without: "samples tokens of `decode` without `top_k`, as earlier versions did",
        of_another: "reads `logits` [+] 0, which is not in a buffer of `decode`",
        earlier: "the sampling of `decode`: it has no calls of the last launch, as in earlier versions",
    }
    for change, words in said.items():
        folder = damaged(gpu_bundle, tmp_path / change.__name__, change)
        for read in (lambda folder=folder: load(folder, "emulate"), lambda folder=folder: trial_of(folder)):
            with pytest.raises(BringupError, match=rf"BU603.*{words}"):
                read()


def requests(batch: Batch) -> dict[int, list[int]]:
    answers: dict[int, list[int]] = {}
    for at, (heat, share, count) in enumerate(SETTINGS):
        settings = {"temperature": heat, "top_p": share, "top_k": count, "seed": at}
        answers[batch.add(Request(PROMPT[at : 3 * at + 2], max_new_tokens=max(NEW - at, 3), **settings))] = []
    return answers


def answers_of(batch: Batch) -> dict[int, list[int]]:
    """The tokens of `requests`, by the request's number."""
    answers = requests(batch)
    while batch:
        for event in batch.step():
            answers[event.id].append(event.token)
    return answers


@pytest.mark.slow
def test_tokens_of_a_batch(batch_bundle) -> None:
    """Greedy and random requests in one step, which end one after the other."""
    batch, wanted = load_batch(batch_bundle, "emulate"), load_batch(batch_bundle, "reference")
    watched = watch(batch)
    assert answers_of(batch) == answers_of(wanted)
    assert False in watched.had_step
    plan = json.loads((batch_bundle / "kernels.json").read_text("utf-8"))
    assert set(plan["sampling"]) == {"decode", "decode_2", "decode_4"}


def test_tokens_of_more_sequences_than_have_slots(tmp_path, monkeypatch) -> None:
    """The host samples steps of a larger batch, and the device those of the same bundle that are small enough."""
    monkeypatch.setattr(sampling, "MOST_SEQUENCES", 2)  # of a GPU: 256, whose steps the emulator runs in minutes
    settings = {"max_seq_len": CONTEXT, "buckets": (PREFILL,), "max_batch_size": 4, "cache_blocks": 4}
    bundle = build(job_of("gpt2", tmp_path), out=tmp_path / "b", target="cuda:sm_80", **settings)
    assert set(json.loads((bundle / "kernels.json").read_text("utf-8"))["sampling"]) == {"decode", "decode_2"}
    batch, wanted = load_batch(bundle, "emulate"), load_batch(bundle, "reference")
    watched = watch(batch)
    assert answers_of(batch) == answers_of(wanted)
    assert watched.had_step  # of the last sequences, once no more than two are left


def test_tokens_of_a_server(batch_bundle, monkeypatch) -> None:
    """A request with `top_k`: its text is that of the tokens which the host samples."""
    batch, reference = load_batch(batch_bundle, "emulate"), load_batch(batch_bundle, "reference")
    watched = watch(batch)
    monkeypatch.setattr(exact, "VOCABULARY", batch.manifest["vocab_size"])  # of the server's tokenizer
    settings = {"temperature": 2.0, "top_p": 0.9, "top_k": 7, "seed": 3}

    async def scenario() -> str:
        async with serving(batch) as server:
            return (await server.complete(PROMPT[:5], max_tokens=NEW, **settings)).json()["choices"][0]["text"]

    number = reference.add(Request(PROMPT[:5], max_new_tokens=NEW, eos={EOS}, **settings))
    tokens = exact.finish(reference)[number]
    assert EOS not in tokens
    assert asyncio.run(scenario()) == text_of(tokens)
    assert len(watched.had_step) == NEW - 1


def test_a_failed_draw_takes_no_random_number(batch_bundle) -> None:
    """Logits that are no numbers end a step; the requests then get the tokens that they would have had."""
    batch, wanted = load_batch(batch_bundle, "emulate"), load_batch(batch_bundle, "reference")
    answers, expected = requests(batch), requests(wanted)
    while wanted:
        for event in wanted.step():
            expected[event.id].append(event.token)
    for event in batch.step():
        answers[event.id].append(event.token)
    executor = batch.executor
    watch(batch, largest=-1)
    with pytest.raises(BringupError, match=r"BU607.*NaN for logits of request 0"):
        batch.step()
    batch._engine.executor = executor
    while batch:
        for event in batch.step():
            answers[event.id].append(event.token)
    assert answers == expected
