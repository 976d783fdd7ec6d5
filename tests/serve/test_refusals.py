"""What is no request: each is answered with OpenAI's form of an error, and names the field or the limit."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from bringup.cli.main import cli
from bringup.compile.serve.limits import Limits
from tests import PATIENCE
from tests.runtime import exact
from tests.serve.inside import Server, serving

TEXT, TALK = "/v1/completions", "/v1/chat/completions"
JSON = {"content-type": "application/json"}
BASE = {"model": "exact", "prompt": "w1", "max_tokens": 1}
CHAT = {"model": "exact", "messages": [{"role": "user", "content": "w1"}]}
FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", "`model` is missing"),
    ({"model": 3}, "model", "not a nonempty string"),
    ({"prompt": None}, "prompt", "`prompt` is missing"),
    ({"prompt": ""}, "prompt", "not a nonempty string"),
    ({"prompt": []}, "prompt", "not a nonempty string"),
    ({"prompt": ["w1", ""]}, "prompt", "not a nonempty string"),
    ({"prompt": [1, "w1"]}, "prompt", "not a nonempty string"),
    ({"prompt": [1, True]}, "prompt", "not a nonempty string"),
    ({"prompt": [[1], []]}, "prompt", "not a nonempty string"),
    ({"prompt": {"text": "w1"}}, "prompt", "not a nonempty string"),
    ({"prompt": [30]}, "prompt", "token 30 is not in the vocabulary of 30"),
    ({"prompt": [-1]}, "prompt", "token -1 is not in the vocabulary"),
    ({"prompt": " "}, "prompt", "the list of tokens is empty"),
    ({"prompt": [1] * 17}, "prompt", "17 tokens do not fit"),
    ({"max_tokens": 0}, "max_tokens", "is 0, not an integer from 1"),
    ({"max_tokens": -5}, "max_tokens", "is -5"),
    ({"max_tokens": 1.0}, "max_tokens", "is 1.0"),
    ({"max_tokens": True}, "max_tokens", "is True"),
    ({"max_tokens": 10**30}, "max_tokens", "is 1000000"),
    ({"max_tokens": 16}, "max_tokens", "together they exceed the context of 16"),
    ({"temperature": -0.1}, "temperature", "not a number from 0 to 2"),
    ({"temperature": 2.1}, "temperature", "not a number from 0 to 2"),
    ({"temperature": "1"}, "temperature", "is '1'"),
    ({"top_p": 0}, "top_p", "not a number above 0 to 1"),
    ({"top_p": 1.5}, "top_p", "is 1.5"),
    ({"top_k": -2}, "top_k", "is -2"),
    ({"seed": -(2**63) - 1}, "seed", "is -9223372036854775809"),
    ({"seed": 2**63}, "seed", "-9,223,372,036,854,775,808 to 9,223,372,036,854,775,807"),
    ({"n": 0}, "n", "is 0"),
    ({"n": 17}, "n", "from 1 to 16"),
    ({"n": 9, "prompt": ["w1", "w2"]}, "prompt", "18 answers are more than the limit of 16"),
    ({"stop": 3}, "stop", "is 3"),
    ({"stop": ""}, "stop", "is ''"),
    ({"stop": ["a", None]}, "stop", "not a nonempty string or a list of these"),
    ({"stop": list("abcde")}, "stop", "5 texts, and the limit is 4"),
    ({"stop": "x" * 257}, "stop", "the limit of 256 characters"),
    ({"stream": 1}, "stream", "is 1, not true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "requires"),
    ({"stream": True, "stream_options": []}, "stream_options", "not an object"),
    ({"stream": True, "stream_options": {"usage": 1}}, "stream_options.usage", "unknown field `stream_options.usage`"),
    ({"logprobs": 21}, "logprobs", "is 21, not an integer from 0 to 20"),
    ({"logprobs": True}, "logprobs", "is True"),
    ({"echo": 1}, "echo", "is 1, not true or false"),
    ({"suffix": "x"}, "suffix", "not supported"),
    ({"best_of": 2}, "best_of", "not supported"),
    ({"best_of": 3, "n": 2}, "best_of", "not supported"),
    ({"presence_penalty": 2.5}, "presence_penalty", "not a number from -2 to 2"),
    ({"frequency_penalty": "1"}, "frequency_penalty", "is '1'"),
    ({"logit_bias": [1]}, "logit_bias", "not an object"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "'x', which is not a token id"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "which is not a token id"),
    ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias", "'01', which is not a token id"),
    ({"logit_bias": {"30": 1}}, "logit_bias", "has token 30, which is not in the vocabulary of 30"),
    ({"logit_bias": {"3": 101}}, "logit_bias", "of token 3 is 101, not a number from -100 to 100"),
    ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias", "1,025 tokens, and the limit is 1,024"),
    ({"repetition_penalty": 1.1}, "repetition_penalty", "not supported"),
    ({"min_p": True}, "min_p", "not supported"),
    ({"ignore_eos": 1}, "ignore_eos", "is 1, not true or false"),
    ({"stop_token_ids": 3}, "stop_token_ids", "is 3, not a list of token ids"),
    ({"stop_token_ids": [True]}, "stop_token_ids", "not a list of token ids"),
    ({"stop_token_ids": [*range(1025)]}, "stop_token_ids", "1,025 tokens, and the limit is 1,024"),
    ({"temprature": 0}, "temprature", "did you mean `temperature`?"),
]  # fmt: skip
MESSAGES: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "messages", "is missing"),
    ({"messages": []}, "messages", "at least one message"),
    ({"messages": ["hi"]}, "messages[0]", "not an object"),
    ({"messages": [{"content": "x"}]}, "role", "`role` is missing"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "not one of system, developer"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "neither a string"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
        "messages[0].content", "parts of type text only",
    ),
    ({"messages": [{"role": "user", "content": "x", "nam": "y"}]}, "messages[0].nam", "did you mean `name`?"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "differ"),
    ({"logprobs": 1}, "logprobs", "is 1, not true or false"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"top_logprobs": 2}, "top_logprobs", "requires"),
    ({"echo": True}, "echo", "unknown field `echo`"),
    ({"tools": [{"type": "function"}]}, "tools", "not supported"),
    ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
    ({"prompt": "x"}, "prompt", "unknown field `prompt`"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "not an object"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "which the server sets"),
]  # fmt: skip


async def error(server: Server, path: str, content: bytes, status: int = 400, **headers: str) -> dict[str, Any]:
    """The error object that is the answer to a body."""
    response = await server.client.post(path, content=content, headers=JSON | headers)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    found = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


def test_every_field_is_checked():
    async def scenario() -> None:
        async with serving(exact.new_batch(2, 4, context=16)) as server:
            for path, base, cases in ((TEXT, BASE, FIELDS), (TALK, CHAT, MESSAGES)):
                for fields, param, message in cases:
                    found = await error(server, path, json.dumps(base | fields).encode())
                    assert found["param"] == param, (fields, found)
                    assert message in found["message"], (fields, found)
                    assert found["type"] == "invalid_request_error"
            too_long = await error(server, TEXT, json.dumps(BASE | {"prompt": "w1 " * 17}).encode())
            assert too_long["code"] == "context_length_exceeded"
            far_too_long = await error(server, TEXT, json.dumps(BASE | {"prompt": "w" * 513}).encode())
            assert "513 characters, and the limit of a prompt is 512" in far_too_long["message"]
            assert server.worker.figures.steps == 0, "nothing of it has run"

    asyncio.run(scenario())


def test_fields_that_change_nothing_are_accepted():
    neutral = {
        "user": "u", "metadata": {"a": "b"}, "store": False, "n": 1, "stop": None, "echo": False, "logprobs": None,
        "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1, "top_k": -1, "suffix": None,
        "repetition_penalty": 1.0, "min_p": 0, "skip_special_tokens": True, "min_tokens": 0, "stop_token_ids": [],
    }  # fmt: skip

    async def scenario() -> httpx2.Response:
        async with serving() as server:
            return await server.complete("w1", max_tokens=1, **neutral)

    assert asyncio.run(scenario()).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b"null", "expected a JSON object"),
        (b'"\xff"', "not valid JSON"),
        (b'{"model": "exact", "prompt": "w1", "temperature": NaN}', "NaN is not JSON"),
        (b'{"model": "exact", "prompt": "w1", "temperature": -Infinity}', "-Infinity is not JSON"),
        (b'{"model": "exact", "prompt": "w1", "temperature": 1e999}', "too large"),
        (b'{"model": "exact", "prompt": "w1", "seed": ' + b"9" * 5000 + b"}", "a number of 5,000 digits"),
        (b'{"model": "exact", "model": "other", "prompt": "w1"}', "key `model` occurs twice"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_json(body, message):
    async def scenario() -> dict[str, Any]:
        async with serving() as server:
            return await error(server, TEXT, body)

    found = asyncio.run(scenario())
    assert message in found["message"]
    assert found["code"] == "invalid_json"


def test_long_and_slow_bodies():
    async def endless():
        yield b'{"prompt": "'
        for _ in range(40):
            yield b"x" * 1000

    async def slow():
        yield b"{"
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with serving(limits=Limits(body=20_000, body_seconds=PATIENCE)) as server:
            for content in (b" " * 20_001, endless()):
                response = await server.client.post(TEXT, content=content, headers=JSON)
                found = response.json()["error"]
                assert (response.status_code, found["code"]) == (413, "body_too_long")
                assert "the limit of 20,000 bytes" in found["message"]
            assert (await error(server, TEXT, b"", 413, **{"content-length": "9" * 30}))["code"] == "body_too_long"
            assert (await server.complete("w1", max_tokens=1)).status_code == 200
        async with serving(limits=Limits(body_seconds=0.2)) as server:
            response = await server.client.post(TEXT, content=slow(), headers=JSON)
            assert (response.status_code, response.headers["connection"]) == (408, "close")
            assert (await server.complete("w1", max_tokens=1)).status_code == 200

    asyncio.run(scenario())


def test_other_types_methods_and_paths():
    async def scenario() -> None:
        async with serving() as server:
            body = json.dumps(BASE).encode()
            for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                await error(server, TEXT, body, 415, **{"content-type": kind})
            await error(server, TEXT, body, 415, **{"content-encoding": "gzip"})
            right = {"content-type": "Application/JSON; charset=utf-8"}
            assert (await server.client.post(TEXT, content=body, headers=right)).status_code == 200
            for method, path, status in (
                ("GET", TEXT, 405), ("OPTIONS", TALK, 405), ("HEAD", TEXT, 405), ("DELETE", "/v1/models", 405),
                ("POST", "/health", 405), ("GET", "/", 404), ("POST", "/v1/embeddings", 404),
                ("GET", "/v1/../etc", 404),
            ):  # fmt: skip
                response = await server.client.request(method, path)
                assert response.status_code == status, (method, path)
                assert method == "HEAD" or response.json()["error"]["type"], response.text
            assert (await server.client.request("HEAD", "/health")).status_code == 200
            figures = await server.figures()
            assert figures['bringup_requests_total{endpoint="other",status="404"}'] == 3, "one label for all paths"

    asyncio.run(scenario())


def test_an_unknown_model():
    async def scenario() -> dict[str, Any]:
        async with serving() as server:
            return await error(server, TEXT, json.dumps(BASE | {"model": "exakt"}).encode(), 404)

    found = asyncio.run(scenario())
    assert (found["param"], found["code"]) == ("model", "model_not_found")
    assert "did you mean `exact`?" in found["message"]


def test_a_conversation_without_a_template_and_one_that_it_refuses():
    async def scenario() -> tuple[dict[str, Any], dict[str, Any]]:
        async with serving(chat=False) as server:
            none = await error(server, TALK, json.dumps(CHAT).encode())
        async with serving() as server:
            chat = server.service.tokenizer.chat
            object.__setattr__(chat, "template", "{{ raise_exception('roles must alternate') }}")
            return none, await error(server, TALK, json.dumps(CHAT).encode())

    none, refused = asyncio.run(scenario())
    assert (none["code"], none["param"]) == ("BU610", "messages")
    assert refused["code"] == "BU611"
    assert "roles must alternate" in refused["message"]


def test_a_key():
    async def scenario() -> None:
        async with serving(api_key="right-key") as server:
            for given in (None, "Bearer wrong", "Bearer right-key2", "Basic right-key", "right-key", "Bearer"):
                headers = {} if given is None else {"authorization": given}
                for path in ("/v1/models", "/metrics", "/v1/other"):
                    response = await server.client.get(path, headers=headers)
                    assert response.status_code == 401, given
                    assert response.json()["error"]["code"] == "invalid_api_key"
                    assert "right-key" not in response.text
                    assert response.headers["www-authenticate"] == "Bearer"
            right = {"authorization": "bearer right-key"}
            assert (await server.client.get("/v1/models", headers=right)).status_code == 200
            assert (await server.client.get("/health")).status_code == 200

    asyncio.run(scenario())


def test_a_limit_of_a_step_that_is_no_number():
    result = CliRunner().invoke(cli, ["serve", ".", "--step-seconds", "nan"])
    assert result.exit_code == 2
    assert "`--step-seconds`: nan is not in the range x>0" in result.output
