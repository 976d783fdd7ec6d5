"""Logprobs, echo, bias and penalties of requests, by numpy on the logits of `tests/runtime/exact.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from bringup.compile.runtime.request import Request
from tests.runtime import exact
from tests.runtime.test_scores import expected, logprobs_after
from tests.serve.inside import EOS, events_of, serving, text_of, wanted

PROMPT = [3, 1, 4]


def written(token: int) -> str:
    """A word as it stands behind another."""
    return f" w{token}"


def answered(*bodies: Mapping[str, Any], chat: bool = False) -> list[Any]:
    """What the server answers: bodies, or the events of a stream."""
    path = "/v1/chat/completions" if chat else "/v1/completions"
    common = {"model": "exact", "temperature": 0, "max_tokens": 6}

    async def scenario() -> list[Any]:
        async with serving() as server:
            found = [await server.client.post(path, json=common | dict(body)) for body in bodies]
            assert [each.status_code for each in found] == [200] * len(bodies), [each.text for each in found]
            return [
                list(events_of(each.text)) if body.get("stream") else each.json()
                for each, body in zip(found, bodies, strict=True)
            ]

    return asyncio.run(scenario())


def check_places(logprobs: Mapping[str, Any], before: Sequence[int], tokens: Sequence[int], top: int) -> None:
    """A completion's logprobs of `tokens`, which come after those of `before`."""
    assert logprobs["tokens"] == list(map(written, tokens))
    for at, token in enumerate(tokens):
        context = [*before, *tokens[:at]]
        if not context:
            assert logprobs["token_logprobs"][at] is logprobs["top_logprobs"][at] is None
            continue
        by_numpy = logprobs_after(context)
        assert logprobs["token_logprobs"][at] == pytest.approx(by_numpy[token], abs=1e-6)
        likely = {written(int(each)): by_numpy[each] for each in (*np.argsort(-by_numpy)[:top], token)}
        assert logprobs["top_logprobs"][at] == pytest.approx(likely, abs=1e-6)
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"])


def test_logprobs_of_a_completion_whole_and_as_a_stream():
    tokens = [token for token in exact.expected(Request(PROMPT, max_new_tokens=6, eos={EOS})) if token != EOS]
    body = {"prompt": PROMPT, "logprobs": 2}
    whole, none, events = answered(body, {**body, "logprobs": 0}, {**body, "stream": True})
    (choice,) = whole["choices"]
    check_places(choice["logprobs"], PROMPT, tokens, 2)
    text = choice["text"]
    for token, offset in zip(tokens, choice["logprobs"]["text_offset"], strict=True):
        assert text[offset:].lstrip().startswith(f"w{token}")
    check_places(none["choices"][0]["logprobs"], PROMPT, tokens, 0)
    parts = [event["choices"][0]["logprobs"] for event in events[:-1]]
    assert parts[-1] is None, "the part that ends has no token"
    joined = {name: [each for part in parts if part for each in part[name]] for name in choice["logprobs"]}
    assert joined == choice["logprobs"]


def test_logprobs_end_with_the_text_before_a_stop_string():
    tokens = exact.expected(Request(PROMPT, max_new_tokens=6))
    assert f"w{tokens[3]}" not in text_of(tokens[:3])
    body = {"prompt": PROMPT, "logprobs": 1, "stop": f" w{tokens[3]}"}
    whole, inside, events = answered(body, {**body, "stop": f"w{tokens[3]}"}, {**body, "stream": True})
    check_places(whole["choices"][0]["logprobs"], PROMPT, tokens[:3], 1)
    check_places(inside["choices"][0]["logprobs"], PROMPT, tokens[:4], 1)  # whose blank is in the text
    streamed = [each["choices"][0]["logprobs"] for each in events[:-1]]
    assert [token for each in streamed if each for token in each["tokens"]] == list(map(written, tokens[:3]))


def test_an_echo_has_the_prompt_and_its_logprobs():
    """A stop string in the prompt ends nothing. `max_tokens` 0 computes the prompt alone, as evaluations have it."""
    body = {"prompt": "w3  w1 w4", "echo": True}
    plain, scored, alone, stopped, tokens, several = answered(
        body, {**body, "logprobs": 1}, {**body, "logprobs": 1, "max_tokens": 0}, {**body, "stop": "w1 w4"},
        {"prompt": PROMPT, "echo": True, "max_tokens": 1}, {**body, "prompt": ["w3", "w5 w6"], "n": 2},
    )  # fmt: skip
    new = [token for token in exact.expected(Request(PROMPT, max_new_tokens=6, eos={EOS})) if token != EOS]
    assert plain["choices"][0]["text"] == f"w3  w1 w4{wanted(PROMPT, 6)}" == scored["choices"][0]["text"]
    assert plain["choices"][0]["logprobs"] is None
    check_places(scored["choices"][0]["logprobs"], [], [*PROMPT, *new], 1)
    check_places(alone["choices"][0]["logprobs"], [], PROMPT, 1)
    assert alone["choices"][0]["text"] == "w3  w1 w4"
    assert alone["choices"][0]["finish_reason"] == "length"
    assert alone["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert stopped["choices"][0]["text"] == plain["choices"][0]["text"]
    assert tokens["choices"][0]["text"] == f"w3 w1 w4{wanted(PROMPT, 1)}"
    texts = [f"w3{wanted([3], 6)}"] * 2 + [f"w5 w6{wanted([5, 6], 6)}"] * 2
    assert [choice["text"] for choice in several["choices"]] == texts


def test_an_echo_is_streamed_first():
    events = answered({"prompt": PROMPT, "echo": True, "logprobs": 0, "stream": True})[0]
    first = events[0]["choices"][0]
    assert first["text"].startswith("w3 w1 w4")
    assert first["logprobs"]["tokens"][:3] == list(map(written, PROMPT))
    assert first["logprobs"]["token_logprobs"][0] is None


def test_bias_and_penalties_are_those_of_the_formula():
    shifts = (
        {"logit_bias": {"9": 3.5, "7": -100}}, {"presence_penalty": 1.5}, {"frequency_penalty": -2},
        {"logit_bias": {}, "frequency_penalty": 0.5, "presence_penalty": -0.5, "temperature": 1.2, "seed": 3},
    )  # fmt: skip
    found = answered(*({"prompt": PROMPT, "max_tokens": 20, **shift} for shift in shifts))
    for body, shift in zip(found, shifts, strict=True):
        words = {**shift, "logit_bias": {int(k): v for k, v in shift.get("logit_bias", {}).items()}}
        tokens = expected(Request(PROMPT, max_new_tokens=20, **words))
        tokens = tokens[: tokens.index(EOS)] if EOS in tokens else tokens
        assert body["choices"][0]["text"] == text_of(tokens)
    assert len({body["choices"][0]["text"] for body in found} | {wanted(PROMPT, 20)}) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_conversation(stream):
    messages = [{"role": "user", "content": "w4"}]
    prompt = [0, 4, 1]
    tokens = [token for token in exact.expected(Request(prompt, max_new_tokens=6, eos={EOS})) if token != EOS]
    body = {"messages": messages, "logprobs": True, "stream": stream}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    found, bare = answered({**body, "top_logprobs": 3, **options}, body, chat=True)
    if stream:
        *parts, last, done = found
        assert done == "[DONE]"
        assert all(part["usage"] is None for part in parts)
        assert last["usage"]["completion_tokens"] >= len(tokens)
        content = [x for p in parts if (y := p["choices"][0]["logprobs"]) for x in y["content"]]
        plain = [x for p in bare[:-1] if (y := p["choices"][0]["logprobs"]) for x in y["content"]]
    else:
        content, plain = (each["choices"][0]["logprobs"]["content"] for each in (found, bare))
    assert len(content) == len(plain) == len(tokens)
    for at, (entry, token) in enumerate(zip(content, tokens, strict=True)):
        by_numpy = logprobs_after([*prompt, *tokens[:at]])
        order = [token, *map(int, np.argsort(-by_numpy)[:3])]
        listed = [entry, *entry["top_logprobs"]]
        assert [each["token"] for each in listed] == list(map(written, order))
        assert [bytes(each["bytes"]).decode() for each in listed] == list(map(written, order))
        assert [each["logprob"] for each in listed] == pytest.approx(list(by_numpy[order]), abs=1e-6)
        assert plain[at] == entry | {"top_logprobs": []}
