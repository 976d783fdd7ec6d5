"""Answers of the two endpoints: those that the program's definition gives, whole and as streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.runtime import exact
from tests.serve.inside import EOS, events_of, serving, text_of, wanted

PROMPT = [3, 1, 4]


def test_a_completion_has_the_tokens_of_a_single_run():
    async def scenario() -> Any:
        async with serving() as server:
            return (await server.complete("w3 w1 w4", max_tokens=6)).json()

    answer = asyncio.run(scenario())
    assert answer["object"] == "text_completion"
    assert answer["model"] == "exact"
    expected = exact.expected(exact.Request(PROMPT, max_new_tokens=6, eos={EOS}))
    reason = "stop" if expected[-1] == EOS else "length"
    assert answer["choices"] == [{"index": 0, "text": wanted(PROMPT, 6), "logprobs": None, "finish_reason": reason}]
    usage = {"prompt_tokens": 3, "completion_tokens": len(expected), "total_tokens": 3 + len(expected)}
    assert answer["usage"] == usage


def test_prompts_of_all_forms_and_several_answers():
    async def scenario() -> Any:
        async with serving() as server:
            forms = ["w3 w1 w4", PROMPT, ["w3 w1 w4", "w5"], [PROMPT, [5]]]
            return [(await server.complete(form, n=2, max_tokens=4)).json() for form in forms]

    one, same, two, tokens = asyncio.run(scenario())
    texts = [wanted(PROMPT, 4)] * 2
    assert [choice["text"] for choice in one["choices"]] == texts == [c["text"] for c in same["choices"]]
    for answer in (two, tokens):
        assert [choice["text"] for choice in answer["choices"]] == [*texts, *[wanted([5], 4)] * 2]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == 4


def test_sampling_is_that_of_the_batch():
    """`n` answers have seeds that follow each other; `top_k` 1 is the likeliest token."""
    settings = {"temperature": 1.5, "top_p": 0.8, "seed": 11}

    async def scenario() -> Any:
        async with serving() as server:
            several = (await server.complete(PROMPT, n=3, max_tokens=8, **settings)).json()
            likeliest = (await server.complete(PROMPT, max_tokens=8, top_k=1, temperature=2.0)).json()
            free = [(await server.complete(PROMPT, max_tokens=8, temperature=2.0)).json() for _ in range(6)]
            return several, likeliest, free

    several, likeliest, free = asyncio.run(scenario())
    seeds = [settings | {"seed": 11 + number} for number in range(3)]
    assert [choice["text"] for choice in several["choices"]] == [wanted(PROMPT, 8, **each) for each in seeds]
    assert likeliest["choices"][0]["text"] == wanted(PROMPT, 8)
    assert len({answer["choices"][0]["text"] for answer in free}) > 1, "without a seed, answers differ"


def test_negative_seeds_are_those_of_openais_api():
    """Those of `n` answers follow each other beyond -1."""
    settings = {"temperature": 1.5, "max_tokens": 8}

    async def scenario() -> list[Any]:
        async with serving() as server:
            seeds = (-2, -1, 0, -(2**63))
            one = [(await server.complete(PROMPT, seed=seed, **settings)).json() for seed in seeds]
            return [*one, (await server.complete(PROMPT, seed=-2, n=3, **settings)).json()]

    *single, several = asyncio.run(scenario())
    texts = [answer["choices"][0]["text"] for answer in single]
    assert texts == [wanted(PROMPT, 8, temperature=1.5, seed=seed) for seed in (2**64 - 2, 2**64 - 1, 0, 2**63)]
    assert len(set(texts)) == 4
    assert [choice["text"] for choice in several["choices"]] == texts[:3]


def test_tokens_that_end_an_answer():
    """Besides the tokenizer's, which `ignore_eos` disables."""
    settings: dict[str, Any] = {"temperature": 2.0, "seed": 5}
    free = exact.expected(exact.Request(PROMPT, max_new_tokens=200, **settings))
    other = next(token for token in free[: free.index(EOS)][3:] if token != free[0])

    async def scenario() -> list[Any]:
        async with serving() as server:
            fields = (
                {"ignore_eos": True},
                {"stop_token_ids": [other]},
                {"ignore_eos": True, "stop_token_ids": [other]},
            )
            answers = [await server.complete(PROMPT, max_tokens=200, **settings, **each) for each in fields]
            return [answer.json()["choices"][0] for answer in answers]

    endless, *ended = asyncio.run(scenario())
    assert (endless["finish_reason"], endless["text"]) == ("length", " ".join(f"w{token}" for token in free))
    for choice in ended:
        assert (choice["finish_reason"], choice["text"]) == ("stop", text_of(free[: free.index(other)]))


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_has_the_text_of_the_whole_answer(usage):
    async def scenario() -> Any:
        async with serving() as server:
            options = {"stream_options": {"include_usage": True}} if usage else {}
            streamed = await server.complete("w3 w1 w4", max_tokens=9, stream=True, n=2, **options)
            return streamed, (await server.complete("w3 w1 w4", max_tokens=9)).json()

    streamed, whole = asyncio.run(scenario())
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done = events_of(streamed.text)
    assert done == "[DONE]"
    assert len({event["id"] for event in events}) == 1
    if usage:
        *events, last = events
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 2 * whole["usage"]["completion_tokens"]
    for index in range(2):
        parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in parts) == whole["choices"][0]["text"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [
            whole["choices"][0]["finish_reason"]
        ]
        assert len(parts) > 3


def test_a_conversation_is_written_by_the_template():
    messages = [{"role": "system", "content": "w9"}, {"role": "user", "content": [{"type": "text", "text": "w4"}]}]
    body = {"model": "exact", "messages": messages, "temperature": 0, "max_completion_tokens": 5}

    async def scenario() -> Any:
        async with serving() as server:
            whole = await server.client.post("/v1/chat/completions", json=body)
            streamed = await server.client.post("/v1/chat/completions", json=body | {"stream": True})
            endless = await server.client.post("/v1/chat/completions", json=body | {"max_completion_tokens": None})
            variables = {"chat_template_kwargs": {"start": "w2", "enable_thinking": False}}
            other = await server.client.post("/v1/chat/completions", json=body | variables)
            return whole.json(), list(events_of(streamed.text)), endless.json(), other.json()

    whole, (first, *events, done), endless, other = asyncio.run(scenario())
    prompt = [0, 9, 0, 4, 1]
    text = wanted(prompt, 5)
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert whole["usage"]["prompt_tokens"] == len(prompt)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text
    assert done == "[DONE]"
    assert endless["choices"][0]["message"]["content"] == wanted(prompt, 256 - len(prompt)), "to the context's end"
    assert other["choices"][0]["message"]["content"] == wanted([*prompt[:-1], 2], 5)


def test_an_answer_ends_before_the_first_stop_string():
    """Also one that begins in a token and ends in another; the request behind it ends too."""
    text = wanted(PROMPT, 40)
    names = text.split()
    inner = f"{names[2][1:]} {names[3][:2]}"
    at = text.find(inner)
    assert at > 0

    async def scenario() -> Any:
        async with serving() as server:
            found = [await server.complete(PROMPT, max_tokens=40, stop=stop) for stop in (inner, ["zz", inner], "zz")]
            streamed = await server.complete(PROMPT, max_tokens=40, stop=inner, stream=True)
            await server.idle()
            return [each.json() for each in found], list(events_of(streamed.text)), await server.figures()

    (one, two, whole), events, figures = asyncio.run(scenario())
    for answer in (one, two):
        assert answer["choices"][0]["text"] == text[:at]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == 4
    assert whole["choices"][0]["text"] == text
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == text[:at]
    assert figures["bringup_cache_blocks_in_use"] == 0


def test_many_requests_at_once_have_the_answers_of_single_runs():
    """More than the batch runs and the cache holds: they wait, are preempted, and share blocks."""
    prompts = [[n % 29 + 1] * (n * 7 % 90 + 1) for n in range(40)]

    async def scenario() -> Any:
        async with serving(exact.new_batch(4, 6)) as server:
            answers = await asyncio.gather(*(server.complete(prompt, max_tokens=30) for prompt in prompts))
            return [answer.json()["choices"][0]["text"] for answer in answers], await server.figures()

    texts, figures = asyncio.run(scenario())
    assert texts == [wanted(prompt, 30) for prompt in prompts]
    assert figures['bringup_requests_total{endpoint="/v1/completions",status="200"}'] == 40
    assert figures["bringup_generated_tokens_total"] > 100
    assert figures["bringup_cache_blocks"] == 6
    assert figures["bringup_cache_blocks_in_use"] == figures["bringup_waiting_requests"] == 0
    assert figures["bringup_first_token_seconds_count"] == 40


def test_models_and_health():
    async def scenario() -> Any:
        async with serving() as server:
            paths = ("/v1/models", "/v1/models/exact", "/v1/models/none", "/health")
            return [await server.client.get(path) for path in paths]

    listed, one, none, health = asyncio.run(scenario())
    (entry,) = listed.json()["data"]
    assert entry == one.json()
    assert (entry["id"], entry["object"], entry["parent"]) == ("exact", "model", None)
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
