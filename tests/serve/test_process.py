"""`bringup serve` as users run it: the official client, raw connections, SIGTERM. The last test ends the process."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import numpy as np
import pytest
from click.testing import CliRunner

import bringup
from bringup.cli.main import cli
from tests import PATIENCE
from tests.runtime.lora.bases import Base
from tests.runtime.lora.conftest import SEQUENCES
from tests.serve.conftest import KEY, Process

if TYPE_CHECKING:
    import openai

NEW = 12
NEAR = 1e-4  # of a logit: programs for several sequences add up in another order
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def single(base: Base, bundle: Path) -> dict[tuple[str, str], str]:
    """The texts of single runs, by model and prompt."""
    session = bringup.load(bundle)
    tokenizer = session.tokenizer()
    draw, found = random.Random(1), dict[tuple[str, str], str]()
    prompts = [" ".join(f"w{draw.randrange(1, 97)}" for _ in range(count)) for count in (1, 9, 33)]
    for name in ("tiny", *base.loras):
        if name in base.loras:
            session.use_lora(name, session.read_lora(base.loras[name]))
        for prompt in prompts:
            tokens = list(session.generate(tokenizer.encode(prompt), max_new_tokens=NEW, eos=tokenizer.eos))
            found[name, prompt] = tokenizer.decode([token for token in tokens if token not in tokenizer.eos])
    return found


def client(process: Process) -> openai.AsyncOpenAI:
    import openai

    return openai.AsyncOpenAI(base_url=f"{process.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE)


def figures(process: Process) -> dict[str, float]:
    text = httpx2.get(f"{process.url}/metrics", headers=HEADERS, timeout=PATIENCE).text
    return {name: float(value) for name, _, value in (x.rpartition(" ") for x in text.splitlines() if x[0] != "#")}


def wait_until_idle(process: Process) -> dict[str, float]:
    end = time.monotonic() + PATIENCE
    while (found := figures(process))["bringup_running_requests"] or found["bringup_waiting_requests"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


async def accepted(process: Process, tasks: Sequence[asyncio.Task[Any]], tokens: int) -> None:
    """Returns once the prompts of these tasks, with so many tokens, are with the server, which gives none an answer."""
    while figures(process)["bringup_prompt_tokens_total"] < tokens:
        await asyncio.sleep(0.01)
    assert not any(task.done() for task in tasks)


async def draining(process: Process) -> None:
    """Returns once the server accepts no more requests."""
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        while (await http.get(f"{process.url}/health")).status_code == 200:
            await asyncio.sleep(0.001)


async def ask(api: openai.AsyncOpenAI, model: str, prompt: str, *, stream: bool, leave: bool = False) -> str | None:
    settings: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": NEW, "temperature": 0}
    if not stream:
        return (await api.completions.create(**settings)).choices[0].text
    text, chunks = "", await api.completions.create(**settings, stream=True)
    async for chunk in chunks:
        text += chunk.choices[0].text
        if leave:
            await chunks.close()
            return None
    return text


@pytest.mark.slow
def test_the_official_client_with_loras_gets_the_answers_of_single_runs(process, single):
    """Many at a time, of which some leave; afterwards nothing is in use."""
    cases = [(model, prompt, n % 2 == 0, n % 7 == 6) for n in range(3) for model, prompt in single]

    async def scenario() -> list[str | None]:
        async with client(process) as api:
            listed = [model.id async for model in api.models.list()]
            assert listed == ["tiny", "plain", "one", "stable", "layer", "mixed"] == process.names.split(", ")
            tasks = (ask(api, model, prompt, stream=stream, leave=leave) for model, prompt, stream, leave in cases)
            return await asyncio.gather(*tasks)

    answers = asyncio.run(scenario())
    wanted = [None if stream and leave else single[model, prompt] for model, prompt, stream, leave in cases]
    assert answers == wanted
    found = wait_until_idle(process)
    assert found["bringup_cache_blocks_in_use"] == found["bringup_lora_slots_in_use"] == 0
    assert found["bringup_lora_slot_evictions_total"] > 0
    texts = {tuple(text for (name, _), text in single.items() if name == model) for model, _ in single}
    assert len(texts) == 6, "each LoRA changes what comes out"


def test_a_conversation_by_the_official_client(process):
    async def scenario() -> None:
        async with client(process) as api:
            messages: list[Any] = [{"role": "user", "content": "w5 w6"}]
            whole = await api.chat.completions.create(model="mixed", messages=messages, max_tokens=5, temperature=0)
            parts = await api.chat.completions.create(
                model="mixed", messages=messages, max_tokens=5, temperature=0, stream=True,
                stream_options={"include_usage": True},
            )  # fmt: skip
            chunks = [chunk async for chunk in parts]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert text == whole.choices[0].message.content != ""
            assert chunks[-1].usage == whole.usage

    asyncio.run(scenario())


def test_the_official_client_reads_what_is_drawn_and_why(process, bundle):
    """Bias, penalties, echo and logprobs, by numpy on the logits of a session."""
    prompt, bias, presence, frequency = [5, 6, 7, 8], {"9": 3.0, "11": -100.0}, 0.8, 0.6
    settings: dict[str, Any] = {
        "model": "tiny", "temperature": 0, "max_tokens": 6, "logit_bias": bias, "presence_penalty": presence,
        "frequency_penalty": frequency,
    }  # fmt: skip

    async def scenario() -> tuple[Any, Any]:
        async with client(process) as api:
            messages: list[Any] = [{"role": "user", "content": "w6"}]
            said = await api.chat.completions.create(messages=messages, logprobs=True, top_logprobs=2, n=2, **settings)
            return await api.completions.create(prompt=prompt, logprobs=2, echo=True, **settings), said

    text, said = asyncio.run(scenario())
    session = bringup.load(bundle)

    def check(prompt: list[int], logprobs: Sequence[tuple[float, dict[str, float]]]) -> list[int]:
        """The answer's tokens; `logprobs` are of these."""
        new: list[int] = []
        for chosen, top in logprobs:
            session.reset()
            raw = session.prefill([*prompt, *new])[-1].astype(np.float64)
            wanted = raw - np.log(np.exp(raw).sum())
            counts = np.bincount(new, minlength=len(raw))
            shifted = raw - frequency * counts - presence * (counts > 0)
            for token, number in bias.items():
                shifted[int(token)] += number
            new.append(int(shifted.argmax()))
            likely = (*np.argsort(-wanted)[:2], new[-1])
            assert chosen == pytest.approx(wanted[new[-1]], abs=NEAR)
            assert {name.strip(): number for name, number in top.items()} == pytest.approx(
                {f"w{token}": wanted[token] for token in likely}, abs=NEAR
            )
        return new

    (choice,) = text.choices
    found = choice.logprobs
    count = len(prompt)
    new = check(prompt, list(zip(found.token_logprobs, found.top_logprobs, strict=True))[count:])
    assert choice.text == " ".join(f"w{token}" for token in prompt) + " ".join(f"w{token}" for token in new)
    assert found.token_logprobs[0] is None
    session.reset()
    rows = session.prefill(prompt).astype(np.float64)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    assert found.token_logprobs[1:count] == pytest.approx([rows[n, prompt[n + 1]] for n in range(count - 1)], abs=NEAR)
    for each in said.choices:
        listed = [(x.logprob, {y.token: y.logprob for y in (*x.top_logprobs, x)}) for x in each.logprobs.content]
        assert each.message.content == " ".join(f"w{token}" for token in check([0, 6, 1], listed))


def test_a_page_of_another_site_reads_nothing(process):
    """Its name leads here, and the browser says so."""
    for host, status in (("evil.example", 421), ("localhost:1", 200)):
        found = httpx2.get(f"{process.url}/v1/models", headers={**HEADERS, "Host": host}, timeout=PATIENCE)
        assert found.status_code == status


def test_errors_are_those_of_the_official_client(process):
    import openai

    async def scenario() -> None:
        async with client(process) as api:
            settings: dict[str, Any] = {"model": "tiny", "prompt": "w1", "max_tokens": 1}
            with pytest.raises(openai.NotFoundError, match="unknown model `french`"):
                await api.completions.create(**settings | {"model": "french"})
            with pytest.raises(openai.BadRequestError, match="tokens do not fit"):
                await api.completions.create(**settings | {"prompt": "w1 " * 200})
            with pytest.raises(openai.APIStatusError, match="the limit of 1,048,576 bytes") as caught:
                await api.completions.create(**settings | {"prompt": "x" * (1 << 21)})
            assert caught.value.status_code == 413
        wrong = openai.AsyncOpenAI(base_url=f"{process.url}/v1", api_key="wrong", max_retries=0)
        async with wrong:
            with pytest.raises(openai.AuthenticationError):
                await wrong.models.list()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_second_signal_ends_the_server_at_once(bundle, tmp_path):
    """Clients get 503 in the form of all errors, and the log has no traceback."""
    process = Process(bundle, {}, tmp_path / "hold")

    async def scenario() -> list[Any]:
        async with client(process) as api:
            settings = {"model": "tiny", "prompt": "w3", "max_tokens": 100, "temperature": 0}
            assert (await api.completions.create(**settings)).choices
            process.hold.touch()
            tasks = [asyncio.create_task(api.completions.create(**settings)) for _ in range(40)]
            await accepted(process, tasks, 41)
            process.running.send_signal(signal.SIGTERM)
            await draining(process)
            process.running.send_signal(signal.SIGTERM)
            found = await asyncio.gather(*tasks, return_exceptions=True)
            process.hold.unlink()  # a step cannot be ended, and the server waits for the one under way
            return found

    assert [getattr(answer, "code", answer) for answer in asyncio.run(scenario())] == ["unavailable"] * 40
    assert process.end() == 128 + signal.SIGTERM
    assert "Traceback" not in process.log


def test_slots_in_a_part_of_memory(base: Base, bundle: Path) -> None:
    """Too small a part is an error before the server starts; the slots themselves are tested in tests/runtime/lora."""
    words = ["serve", str(bundle), "--port", "0", "--lora", f"a={next(iter(base.loras.values()))}"]
    result = CliRunner().invoke(cli, [*words, "--lora-fraction", "1e-12"])
    assert "error[BU621]: a slot for a LoRA needs" in result.output
    assert result.exit_code == 1


@pytest.mark.slow
def test_sigterm_loses_no_accepted_request(process, single):
    """More are accepted than run at a time when it comes: all are answered in full, and later ones hear 503."""
    cases = [*single] * 3
    assert len(cases) > SEQUENCES
    tokens = figures(process)["bringup_prompt_tokens_total"] + sum(len(prompt.split()) for _, prompt in cases)

    async def scenario() -> tuple[list[str | None], list[Any]]:
        async with client(process) as api:
            process.hold.touch()
            tasks = [asyncio.create_task(ask(api, *case, stream=n % 2 == 0)) for n, case in enumerate(cases)]
            await accepted(process, tasks, tokens)
            process.running.send_signal(signal.SIGTERM)
            await draining(process)
            late = [ask(api, *case, stream=False) for case in [*single][:8]]
            refused = await asyncio.gather(*late, return_exceptions=True)
            process.hold.unlink()
            return await asyncio.gather(*tasks), refused

    answers, refused = asyncio.run(scenario())
    assert answers == [single[case] for case in cases]
    assert [getattr(answer, "code", answer) for answer in refused] == ["draining"] * 8
    assert process.end() == 0
    assert "Traceback" not in process.log
    assert KEY not in process.log
