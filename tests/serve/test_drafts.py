"""A server with a draft: the answers are those of the server without one."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

import bringup
from bringup.cli.main import cli
from bringup.compile.runtime.batch import Batch
from bringup.compile.runtime.speculative import DRAFT_TOKENS
from tests import PATIENCE
from tests.runtime import exact
from tests.runtime.drafts.test_batches import drafted, idle
from tests.runtime.lora.bases import Base
from tests.serve.conftest import KEY, Process
from tests.serve.inside import events_of, serving

PROMPTS = [[index, *range(3, 3 + 5 * index)] for index in range(6)]
FIELDS: list[dict[str, Any]] = [
    {"max_tokens": 40, "n": 2}, {"max_tokens": 25, "stop": ["w9", "w1"]}, {"max_tokens": 9},
    {"max_tokens": 30, "logprobs": 2, "echo": True}, {"max_tokens": 30, "presence_penalty": 1, "logit_bias": {"4": 2}},
]  # fmt: skip


async def answers(batch: Batch) -> tuple[list[Any], dict[str, float]]:
    """The choices and texts of concurrent requests, of which others are cancelled meanwhile, and the figures."""
    async with serving(batch) as server:
        left = [asyncio.create_task(server.complete(prompt, max_tokens=200)) for prompt in PROMPTS]
        tasks = [server.complete(prompt, **FIELDS[index % len(FIELDS)]) for index, prompt in enumerate(PROMPTS * 3)]
        streams = [server.complete(prompt, stream=True, max_tokens=20) for prompt in PROMPTS]
        running = [asyncio.create_task(each) for each in (*tasks, *streams)]
        await running[0]
        for task in left:
            task.cancel()
        found = await asyncio.gather(*running)
        await server.idle()
        texts = [
            "".join(event["choices"][0]["text"] for event in events_of(each.text) if event != "[DONE]")
            for each in found[len(tasks) :]
        ]
        return [each.json()["choices"] for each in found[: len(tasks)]] + texts, await server.figures()


@pytest.mark.parametrize("period", [0, 3])
def test_concurrent_requests(period: int) -> None:
    wanted, plain = asyncio.run(answers(exact.new_batch(all_logits=True)))
    batch = drafted(period=period)
    found, figures = asyncio.run(answers(batch))
    assert found == wanted
    assert idle(batch)
    names = "steps", "step_tokens", "proposed_tokens", "accepted_tokens"
    steps, tokens, proposed, accepted = (figures[f"bringup_draft_{name}_total"] for name in names)
    assert 2 * steps < tokens <= steps + accepted
    assert (accepted == proposed > 0) if period == 0 else (0 < accepted < proposed)
    assert {plain[f"bringup_draft_{name}_total"] for name in names} == {0}


@pytest.mark.parametrize("which", ["main", "draft"])
def test_a_step_that_fails(which: str) -> None:
    """Of either model: its requests fail, and later ones are answered."""
    batch = drafted()
    assert batch.drafts
    executor: Any = batch.executor if which == "main" else batch.drafts.engine.executor
    failed: list[int] = []

    def fault() -> None:
        if len(executor.steps) > 3 and not failed:
            failed.append(1)
            raise RuntimeError("device lost")

    executor.fault = fault

    async def scenario() -> tuple[list[int], Any]:
        async with serving(batch) as server:
            first = await asyncio.gather(*(server.complete(prompt, max_tokens=30) for prompt in PROMPTS[:3]))
            return [each.status_code for each in first], (await server.complete([5, 6], max_tokens=9)).json()

    codes, answer = asyncio.run(scenario())
    assert failed
    assert 500 in codes
    assert answer["choices"] == asyncio.run(_alone([5, 6]))
    assert idle(batch)


async def _alone(prompt: list[int]) -> Any:
    async with serving() as server:
        return (await server.complete(prompt, max_tokens=9)).json()["choices"]


@pytest.mark.slow
def test_the_command(base: Base, bundle: Path, tmp_path: Path) -> None:
    """With LoRAs, which the draft does not have: it is the base model."""
    session, wanted, prompt = bringup.load(bundle), dict[str, str](), [5, 9, 40, 2]
    tokenizer = session.tokenizer()
    for name in ("tiny", "plain", "mixed"):
        if name in base.loras:
            session.use_lora(name, session.read_lora(base.loras[name]))
        tokens = list(session.generate(prompt, max_new_tokens=30, eos=tokenizer.eos))
        wanted[name] = tokenizer.decode([token for token in tokens if token not in tokenizer.eos])
    loras = {name: base.loras[name] for name in ("plain", "mixed")}
    served = Process(bundle, loras, tmp_path / "hold", "--draft", str(bundle), "--draft-tokens", "3")
    try:
        headers = {"Authorization": f"Bearer {KEY}"}

        def ask(name: str) -> str:
            body = {"model": name, "prompt": prompt, "max_tokens": 30, "temperature": 0}
            answer = httpx2.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE)
            return answer.json()["choices"][0]["text"]

        names = list(wanted) * 3
        with ThreadPoolExecutor(len(names)) as pool:
            assert list(pool.map(ask, names)) == [wanted[name] for name in names]
        text = httpx2.get(f"{served.url}/metrics", headers=headers, timeout=PATIENCE).text
        figures = {
            name: float(value) for name, _, value in (x.rpartition(" ") for x in text.splitlines() if x[0] != "#")
        }
        assert figures["bringup_draft_accepted_tokens_total"] > 0
        assert figures["bringup_cache_blocks_in_use"] == 0
    finally:
        served.running.terminate()
        assert served.end() == 0
    assert f"Loaded {bundle} and {bundle} in " in served.log


def test_the_default_number_of_proposals() -> None:
    """`run` has a second default: that of drafts which no server supports."""
    help = {name: " ".join(CliRunner().invoke(cli, [name, "--help"]).output.split()) for name in ("run", "serve")}
    stated = {name: re.findall(r"proposes in a step; default: ([^.]*)[.]", text) for name, text in help.items()}
    assert stated == {"run": [f"{DRAFT_TOKENS}, or 1 for an MTP layer"], "serve": [f"{DRAFT_TOKENS}"]}
