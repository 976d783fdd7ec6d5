"""Requests of the official `openai` client to `bringup serve`, 16 at a time: `python -m benchmarks.serve BUNDLE`.

BUNDLE has slots for 3 LoRAs; random ones are written. Responses of `bringup serve` are compared with those of single
runs (`bringup.load`, one sequence at a time, greedy). Some clients disconnect in the middle of a stream; some send
bodies, prompts or values beyond the limits. At the end no block of the cache is in use. Then a second load is
interrupted by SIGTERM: every request that was accepted gets a complete response.

A response that differs is a failure, unless the logits of the single run are nearly equal at the first token that
differs: their distance is below `NEAR`. These cases are counted and printed, with the smallest such distance of all
tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import openai

import bringup
from benchmarks.serve_requests import LORAS, Case, requests, sizes_of, write_lora

NEAR = 1e-3  # of a logit; the rounding of float32 sums of this size is 1e-5 to 1e-4
KEY = "benchmark-key"
FIGURES = (
    *("cache_blocks_in_use", "lora_slots_in_use", "disconnects_total", "failed_steps_total", "steps_total"),
    *("generated_tokens_total", "preemptions_total", "shared_tokens_total"),
    *("lora_slot_hits_total", "lora_slot_misses_total", "lora_slot_evictions_total"),
)


class Single:
    """Answers of one sequence at a time, each computed once."""

    def __init__(self, bundle: str, loras: Mapping[str, Path], executor: str | None) -> None:
        self.session = bringup.load(bundle, executor)
        self.tokenizer = self.session.tokenizer()
        self.loras = {name: self.session.read_lora(path) for name, path in loras.items()}
        self.known: dict[tuple[str, str, bool, int], tuple[str, list[int]]] = {}

    def prompt(self, case: Case) -> list[int]:
        if not case.chat:
            return self.tokenizer.encode(case.prompt)
        assert self.tokenizer.chat
        return self.tokenizer.encode(self.tokenizer.chat.render(case.messages), whole=False)

    def answer(self, case: Case) -> str:
        key = case.model, case.prompt, case.chat, case.count
        if key not in self.known:
            lora = case.model if case.model in self.loras else None
            self.session.use_lora(lora, self.loras.get(case.model))
            eos, stream = self.tokenizer.eos, self.tokenizer.stream(skip_special=True)
            prompt = self.prompt(case)
            tokens = list(self.session.generate(prompt, max_new_tokens=case.count, eos=eos))
            text = "".join(stream.push(token) for token in tokens if token not in eos) + stream.finish()
            self.known[key] = text, tokens
        text, case.tokens = self.known[key]
        return text

    def margin(self, case: Case) -> float:
        """The distance of the two largest logits where the answer of the server departs from the single run's."""
        lora = case.model if case.model in self.loras else None
        self.session.use_lora(lora, self.loras.get(case.model))
        stream, text = self.tokenizer.stream(skip_special=True), ""
        logits = self.session.prefill(self.prompt(case))[-1]
        for token in case.tokens:
            text += stream.push(token)
            if not (case.text or "").startswith(text):
                break
            logits = self.session.decode(token)
        last, best = np.sort(logits)[-2:]
        return float(best - last)


class Serving:
    """`bringup serve` in a process."""

    def __init__(self, bundle: str, loras: Mapping[str, Path], queue: int, executor: str | None) -> None:
        command = [sys.executable, "-m", "bringup", "serve", bundle, "--port", "0", "--max-queue", str(queue)]
        command += ["--executor", executor] if executor else []
        for name, path in loras.items():
            command += ["--lora", f"{name}={path}"]
        environment = {**os.environ, "BRINGUP_API_KEY": KEY}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"serving .* at (http://\S+)", line):
                self.url = found[1]
                break
        else:
            raise SystemExit("".join(self.log))

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url, api_key=KEY, max_retries=0, timeout=300)

    def metrics(self) -> dict[str, float]:
        address = self.url.removesuffix("/v1") + "/metrics"
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request) as response:
            lines = response.read().decode().splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.wait()


async def ask(client: openai.AsyncOpenAI, case: Case, draw: random.Random) -> str:
    """Sends one request; what became of it in one word."""
    common = {"model": case.model, "temperature": 0, "max_tokens": case.count, "stream": case.stream}
    start = time.perf_counter()
    if case.chat:
        given = await client.chat.completions.create(messages=case.messages, **common)
    else:
        given = await client.completions.create(prompt=case.prompt, **common)
    if case.stream:
        parts: list[str] = []
        leave_after = draw.randint(1, max(case.count - 2, 1)) if case.leaves else None
        async for chunk in given:
            for choice in chunk.choices:
                parts.append((choice.delta.content if case.chat else choice.text) or "")
            if leave_after is not None and len(parts) > leave_after:
                await given.close()
                return "left"
        case.text = "".join(parts)
    else:
        case.text = given.choices[0].message.content if case.chat else given.choices[0].text
    case.seconds = time.perf_counter() - start
    return "answered"


async def leave_early(client: openai.AsyncOpenAI, case: Case, draw: random.Random) -> str:
    """A client that waits for a whole answer, and goes after a moment."""
    try:
        await asyncio.wait_for(ask(client, case, draw), draw.uniform(0.01, 1.0))
    except (TimeoutError, openai.APITimeoutError, asyncio.CancelledError):
        return "left"
    return "answered"


async def oversized(client: openai.AsyncOpenAI, base: str, draw: random.Random) -> str:
    """What is over a limit; the status that says so."""
    kind = draw.choice(("body", "prompt", "tokens", "choices"))
    fields: dict[str, Any] = {"model": base, "prompt": "x", "max_tokens": 4}
    fields |= {
        "body": {"prompt": "x" * (1 << 20)}, "prompt": {"prompt": "word " * 5000},
        "tokens": {"max_tokens": 1 << 20}, "choices": {"n": 1000},
    }[kind]  # fmt: skip
    try:
        await client.completions.create(**fields)
    except openai.APIStatusError as error:
        if error.status_code != (413 if kind == "body" else 400):
            raise
        return f"refused {error.status_code}"
    raise AssertionError(f"{kind}: accepted")


async def load(serving: Serving, cases: Sequence[Case], workers: int, seed: int, base: str) -> Counter[str]:
    """Sends all requests, so many at a time, with one of eight over a limit besides."""
    outcomes: Counter[str] = Counter()
    queue, draw = list(cases)[::-1], random.Random(seed)

    async def work() -> None:
        while queue:
            case = queue.pop()
            if draw.random() < 1 / 8:
                outcomes[await oversized(client, base, draw)] += 1
            how = leave_early if case.leaves and not case.stream else ask
            outcomes[await how(client, case, draw)] += 1

    async with serving.client() as client:
        await asyncio.gather(*(work() for _ in range(workers)))
    return outcomes


async def interrupted(serving: Serving, cases: Sequence[Case], workers: int) -> Counter[str]:
    """SIGTERM while a load is under way: requests are answered, or refused with 503 or by a closed door."""
    outcomes: Counter[str] = Counter()
    queue, draw = list(cases)[::-1], random.Random(1)
    limit = len(queue) // 4

    async def work() -> None:
        while queue:
            case = queue.pop()
            try:
                outcomes[await ask(client, case, draw)] += 1
                if sum(outcomes.values()) == limit:
                    serving.process.send_signal(signal.SIGTERM)
            except openai.APIStatusError as error:
                if error.status_code != 503:
                    raise
                outcomes["refused 503"] += 1
            except openai.APIConnectionError:
                outcomes["no connection"] += 1

    async with serving.client() as client:
        await asyncio.gather(*(work() for _ in range(workers)))
    return outcomes


def compare(cases: Sequence[Case], single: Single) -> tuple[int, int, list[float]]:
    """How many answers there are, how many are equal, and the margins of the others."""
    answered = [each for each in cases if each.text is not None]
    differ = [each for each in answered if single.answer(each) != each.text]
    return len(answered), len(answered) - len(differ), [single.margin(each) for each in differ]


def report(title: str, outcomes: Mapping[str, int], cases: Sequence[Case], single: Single) -> bool:
    count, equal, margins = compare(cases, single)
    print(f"{title}: {', '.join(f'{number} {word}' for word, number in sorted(outcomes.items()))}")
    print(f"  {equal} of {count} answers equal the single run's")
    for margin in margins:
        print(f"  one differs where the two largest logits are {margin:.2e} apart")
    return all(margin < NEAR for margin in margins)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", help="compiled with --max-lora-rank 8 --max-loras 3 --max-batch-size 8")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=12, help="of an answer")
    parser.add_argument("--interrupted", type=int, default=32, help="requests of the load that SIGTERM interrupts")
    parser.add_argument("--executor", help="a device of the bundle's target, such as threads:1")
    args = parser.parse_args()
    base, ok = Path(args.bundle).resolve().name.removesuffix(".bundle"), True
    with tempfile.TemporaryDirectory() as scratch:
        loras = {name: Path(scratch, name) for name in LORAS}
        for number, folder in enumerate(loras.values()):
            write_lora(folder, sizes_of(args.bundle), number, scale=0.05)
        cases = requests(args.requests, 1, base, args.max_tokens)
        with Serving(args.bundle, loras, queue=args.workers, executor=args.executor) as serving:
            start = time.perf_counter()
            outcomes = asyncio.run(load(serving, cases, args.workers, 2, base))
            seconds = time.perf_counter() - start
            while (figures := serving.metrics())["bringup_running_requests"] or figures["bringup_waiting_requests"]:
                time.sleep(0.1)  # a client that left a moment ago
            serving.process.send_signal(signal.SIGTERM)
            code = serving.process.wait(60)
        single = Single(args.bundle, loras, args.executor)
        ok &= report(f"{args.requests} requests, {args.workers} at a time, {seconds:.0f} s", outcomes, cases, single)
        times = sorted(each.seconds for each in cases if each.text is not None)
        p50, p99 = times[len(times) // 2], times[min(len(times) * 99 // 100, len(times) - 1)]
        print(f"  p50 {p50:.2f} s, p99 {p99:.2f} s for {args.max_tokens} tokens at most")
        for name in FIGURES:
            print(f"  {name} {figures[f'bringup_{name}']:.0f}")
        print(f"  exit code {code}", flush=True)
        ok &= figures["bringup_cache_blocks_in_use"] == figures["bringup_lora_slots_in_use"] == code == 0
        cases = requests(args.interrupted, 1, base, args.max_tokens)
        with Serving(args.bundle, loras, queue=args.workers, executor=args.executor) as serving:
            outcomes = asyncio.run(interrupted(serving, cases, args.workers))
            code = serving.process.wait(300)
        ok &= report(f"{args.interrupted} requests, SIGTERM after a quarter", outcomes, cases, single)
        print(f"  exit code {code}")
        ok &= code == 0
    sys.exit(0 if ok else "there are failures")


if __name__ == "__main__":
    main()
