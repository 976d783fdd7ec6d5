"""Several sequences at a time: requests join and leave between steps (Yu et al. 2022, Orca), over one paged cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from os import PathLike
from typing import TYPE_CHECKING, Self

import numpy as np

from bringup.compile.program.program import Draw, Executor, close_executor
from bringup.compile.runtime.drawn import Drawn, check, draw_by_executor, draw_from, failing, score_prompt
from bringup.compile.runtime.engine import Engine, Results
from bringup.compile.runtime.lora.loras import HOST_BYTES, Loras
from bringup.compile.runtime.lora.weights import LoraWeights
from bringup.compile.runtime.opening import Opened, open_bundle
from bringup.compile.runtime.request import CheckedRequest, Event, Reason, Request
from bringup.compile.runtime.sampling import check_drawn, take_back
from bringup.compile.runtime.scheduler import Job, Planned, Scheduler
from bringup.compile.runtime.stats import Stats
from bringup.compile.runtime.token_ids import check_context, check_input, check_vocabulary
from bringup.diagnostics import fail

if TYPE_CHECKING:
    from bringup.compile.text.tokenizer import Tokenizer


GREEDY = Draw(0.0, 1.0, 0.0)  # for a token that nobody reads


class Batch:
    """Requests that run together. One thread uses it.

    `add` requests at any time, and call `step` while there are some (`while batch:`). What runs at the same time
    changes no request's tokens, but for what rounding does to logits that are nearly equal: programs for several
    sequences add up in another order than programs for one. Requests that begin with the same tokens compute whole
    blocks of them once (`shared_tokens`).

    Each request may name a LoRA; `loras` has those that were sent, and any thread may add more. A request whose LoRA
    has no slot waits until one is free.
    """

    def __init__(self, opened: Opened, loras: Loras | None = None) -> None:
        self.manifest, self.interface, self.folder = opened.manifest, opened.interface, opened.folder
        self.load_seconds = opened.seconds
        self._opened = opened
        self._engine = Engine(opened.manifest, opened.executor, opened.interface, share_blocks=True)
        self.loras = loras or Loras(opened.interface, opened.executor)
        self._scheduler = Scheduler(self._engine, self.loras)
        self._ids = count()

    def __len__(self) -> int:
        """Requests that are not finished."""
        return len(self._scheduler.waiting) + len(self._scheduler.running)

    @property
    def preemptions(self) -> int:
        """How often a request gave up its blocks, since an older one needed them."""
        return self._scheduler.preemptions

    @property
    def shared_tokens(self) -> int:
        """Tokens that a request did not compute, since another one had."""
        return self._scheduler.shared_tokens

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache."""
        return self._engine.pool.count

    @property
    def num_blocks_used(self) -> int:
        """Blocks that requests hold. Others may have tokens that the next request finds there, and are free."""
        return self.num_blocks - self._engine.pool.num_free

    @property
    def max_tokens(self) -> int:
        """The longest that a prompt and its continuation can be."""
        return self._engine.max_tokens

    @property
    def max_input_len(self) -> int:
        """The longest prompt."""
        return min(self.max_tokens, self._engine.max_input_len or self.max_tokens)

    @property
    def executor(self) -> Executor:
        """What runs the steps."""
        return self._engine.executor

    def close(self) -> None:
        """Gives back what the executor holds of a device, such as its memory; no step follows.

        Leaving a `with` block closes it, and so does the end of the last reference to the executor.
        """
        close_executor(self.executor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer. Raises BU014 when it has none, BU608 when it is not the one it was compiled with."""
        return self._opened.tokenizer()

    def read_lora(self, path: str | PathLike[str]) -> LoraWeights:
        """The LoRA in a folder that PEFT wrote, or another form that `bringup lora check` reads; raises what that does.

        Any thread may call it.
        """
        from bringup.compile.runtime.lora.reading import read_lora

        return read_lora(self.manifest, path, self._opened.weights)

    def read_lora_request(self, weights: np.ndarray, config: np.ndarray) -> LoraWeights:
        """The LoRA of TensorRT-LLM's `LoraWeights` and `LoraConfig` (docs/lora.md). Raises BU173 for other tensors."""
        from bringup.compile.runtime.lora.reading import read_request

        return read_request(self.manifest, weights, config)

    def check(self, request: Request) -> CheckedRequest:
        """Raises what `add` raises, and adds nothing."""
        if inputs := self.interface.entries[-1].token_inputs:
            names = ", ".join(f"`{spec.name}`" for spec in inputs)
            help = "run one sequence at a time: bringup.load(bundle)"
            raise fail("BU029", f"this model takes {names} besides tokens, which a batch does not have", help=help)
        checked = request.checked()
        check_vocabulary(checked.tokens, self.manifest["vocab_size"])
        checked.shift.check(self.manifest["vocab_size"])
        check_input(len(checked.tokens), self._engine.max_input_len)
        check_context(len(checked.tokens), self._engine.max_tokens)
        self.loras.check(checked.lora, checked.lora_weights)
        return checked

    def add(self, request: Request) -> int:
        """The number of this request, by which events name it. It runs from the next step on, if there is room.

        Raises BU015 for what is no token of the vocabulary, BU016 when the context has no room for the prompt, BU019
        and BU024 for settings out of range, BU029 for a model that takes more than tokens; of its LoRA BU620 where its
        weights have to be sent, BU621 where there is no room for them, BU622 where the bundle does not take it.
        """
        checked = self.check(request)
        weights = self.loras.hold(checked.lora, checked.lora_weights)
        job = Job(
            id=next(self._ids),
            request=checked,
            tokens=list(checked.tokens),
            random=np.random.default_rng(checked.seed),
            stats=Stats(),
            lora=weights and weights.number,
        )
        self._scheduler.waiting.append(job)
        return job.id

    def remove(self, id: int) -> bool:
        """Ends a request without another event. False when there is none of that number: it may have finished."""
        found = [job for job in (*self._scheduler.running, *self._scheduler.waiting) if job.id == id]
        for job in found:
            self._end(job)
        return bool(found)

    def _end(self, job: Job) -> None:
        """Takes a request out for good."""
        self._scheduler.stop(job)
        self.loras.release(job.request.lora)

    def step(self) -> list[Event]:
        """Runs the program once: the next token of each request whose last one it took in, oldest request first.

        There are none when only parts of prompts were taken in, or there is no request. A step that fails takes nothing
        in and draws no token. What it raises comes through; all requests wait with the tokens that they have, and are
        computed again from these. Raises RequestFailed, with BU607, where the logits of a request are no numbers:
        `remove` it to go on.
        """
        with ExitStack() as failed:
            failed.callback(self._scheduler.restart)
            planned = self._scheduler.plan()
            ended = self._run(planned) if planned else []
            failed.pop_all()
        return list(map(self._event, ended))

    def _run(self, planned: Sequence[Planned]) -> list[Drawn]:
        """Takes in what is planned; the next token of the jobs of which all tokens are in."""
        start = time.perf_counter()
        needs_logits = any(each.job.request.needs_logits for each in planned)
        if not (self._scheduler.prefilled or needs_logits) and self._engine.can_draw(len(planned)):
            return self._draw(planned, start)
        run = self._engine.prefill if self._scheduler.prefilled else self._engine.decode
        results: list[Results] = run([each.part() for each in planned])
        seconds = time.perf_counter() - start
        for each, found in zip(planned, results, strict=True):
            check(each, found.logits)
        for each, found in zip(planned, results, strict=True):
            score_prompt(each, found.logits)
            _add(each, seconds)
        return [
            draw_from(each.job, found.logits[-1]) for each, found in zip(planned, results, strict=True) if each.done
        ]

    def _draw(self, planned: Sequence[Planned], start: float) -> list[Drawn]:
        """The same for a step of decode whose tokens the executor draws."""
        last = [len(each.cached.tokens) + each.count == len(each.job.tokens) for each in planned]
        with ExitStack() as failed:
            draws = [
                draw_by_executor(each.job) if is_last else GREEDY for each, is_last in zip(planned, last, strict=True)
            ]
            for each, draw in zip(planned, draws, strict=True):
                failed.callback(take_back, draw, each.job.random)
            tokens = self._engine.draw([each.part() for each in planned], draws)
            ended = [Drawn(each.job, token) for each, token in zip(planned, tokens, strict=True) if each.done]
            for job, token, _ in ended:
                with failing(job):
                    check_drawn(token, f" of request {job.id}")
            failed.pop_all()
        seconds = time.perf_counter() - start
        for each in planned:
            _add(each, seconds)
        return ended

    def _event(self, drawn: Drawn) -> Event:
        job, token, request = drawn.job, drawn.token, drawn.job.request
        job.tokens.append(token)
        is_first = request.prompt_logprobs and len(job.tokens) == len(request.tokens) + 1
        scores = tuple(map(job.prompt_scores.get, range(len(request.tokens)))) if is_first else ()
        reason: Reason | None = None
        if token in request.eos:
            reason = "eos"
        elif len(job.tokens) - len(request.tokens) == request.max_new_tokens:
            reason = "length"
        elif len(job.tokens) > self._engine.max_tokens:
            reason = "context"
        if reason:
            self._end(job)
        return Event(job.id, token, reason, job.stats, drawn.score, scores)


def _add(planned: Planned, seconds: float) -> None:
    """A step to the stats of its request: to prefill until the first new token, to decode from then on."""
    stats, job = planned.job.stats, planned.job
    if len(job.tokens) == len(job.request.tokens):
        stats.prefill_tokens += planned.count
        stats.prefill_seconds += seconds
    else:
        stats.decode_tokens += planned.done
        stats.decode_seconds += seconds


def load_batch(
    bundle: str | PathLike[str],
    executor: str | None = None,
    *,
    lora_bytes: int = HOST_BYTES,
    lora_fraction: float | None = None,
) -> Batch:
    """Opens a bundle for several sequences at a time: as many as `--max-batch-size` said when it was compiled.

    Other requests wait. `lora_bytes` is the size of the host's cache of LoRAs, `lora_fraction` the part of the memory
    that is then free which their slots may fill: fewer than `--max-loras`, where that is less. Raises what `load`
    raises; `executor` is as there.
    """
    opened = open_bundle(bundle, executor)
    return Batch(opened, Loras(opened.interface, opened.executor, host_bytes=lora_bytes, fraction=lora_fraction))
