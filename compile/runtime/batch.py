"""Several sequences at a time: requests join and leave between steps (Yu et al. 2022, Orca), over one paged cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from os import PathLike
from typing import TYPE_CHECKING, Self

import numpy as np

from bringup.compile.program.program import Draw, Executor
from bringup.compile.runtime.drafts import Drafts, open_drafts
from bringup.compile.runtime.drawn import Drawn, check, draw_by_executor, draw_from, failing, score_prompt
from bringup.compile.runtime.engine import Engine
from bringup.compile.runtime.lora.loras import HOST_BYTES, Loras
from bringup.compile.runtime.lora.weights import LoraWeights
from bringup.compile.runtime.opening import Opened, open_bundle
from bringup.compile.runtime.parts import Results
from bringup.compile.runtime.request import CheckedRequest, Event, Reason, Request
from bringup.compile.runtime.sampling import check_drawn, take_back
from bringup.compile.runtime.scheduler import Job, Planned, Scheduler
from bringup.compile.runtime.stats import Stats
from bringup.compile.runtime.token_ids import check_context, check_input, check_vocabulary
from bringup.diagnostics import fail

if TYPE_CHECKING:
    from bringup.compile.text.tokenizer import Tokenizer


GREEDY = Draw(0.0, 1.0, 0.0)  # for a token that is not read


class Batch:
    """Requests that run together. One thread uses it.

    `add` requests at any time, and call `step` while there are any (`while batch:`). The tokens of a request do not
    depend on the others, except for rounding of nearly equal logits: programs for several sequences add in another
    order than programs for one. Requests that begin with the same tokens share the complete blocks of this prefix
    (`shared_tokens`).

    Each request may name a LoRA; `loras` is their cache, to which any thread may add. A request whose LoRA has no slot
    waits until one is free.

    With `drafts`, a step may have several tokens of a request, and an event for each; see `Speculative` for their
    distribution.
    """

    def __init__(self, opened: Opened, loras: Loras | None = None, drafts: Drafts | None = None) -> None:
        self.manifest, self.interface, self.folder = opened.manifest, opened.interface, opened.folder
        self.load_seconds = opened.seconds
        self._opened = opened
        self._engine = Engine(opened.manifest, opened.executor, opened.interface, share_blocks=True)
        self.loras = loras or Loras(opened.interface, opened.executor)
        self.drafts = drafts
        self._scheduler = Scheduler(self._engine, self.loras, drafts.engine if drafts else None)
        self._ids = count()

    def __len__(self) -> int:
        """Requests that are not finished."""
        return len(self._scheduler.waiting) + len(self._scheduler.running)

    @property
    def preemptions(self) -> int:
        """The number of times that a request lost its blocks to an older one."""
        return self._scheduler.preemptions

    @property
    def shared_tokens(self) -> int:
        """Tokens that a request did not compute, because it shares the blocks of another."""
        return self._scheduler.shared_tokens

    @property
    def unshared(self) -> str:
        """The parts of the model because of which requests share no blocks, for a message; "" if there are none."""
        kinds = {state.kind for state in self.interface.sequence_states}
        return "recurrent layers" if "sequence" in kinds else "rings of sliding windows" if "ring" in kinds else ""

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache."""
        return self._engine.pool.count

    @property
    def num_blocks_used(self) -> int:
        """Blocks of current requests. Free blocks may contain tokens that a later request can reuse."""
        return self.num_blocks - self._engine.pool.num_free

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a prompt and its continuation."""
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
        """Releases the device resources of the executor, such as memory. Steps raise BU617 from then on.

        Leaving a `with` block also closes it, and so does the end of the last reference to the executor.
        """
        self._engine.shut_down()
        if self.drafts:
            self.drafts.engine.shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer. Raises BU014 if it has none, BU608 if it is not the one it was compiled with."""
        return self._opened.tokenizer()

    def read_lora(self, path: str | PathLike[str]) -> LoraWeights:
        """Reads a LoRA in peft's form, or another that `bringup lora check` supports; raises the same errors.

        Any thread may call it.
        """
        from bringup.compile.runtime.lora.reading import read_lora

        return read_lora(self.manifest, path, self._opened.weights)

    def read_lora_request(self, weights: np.ndarray, config: np.ndarray) -> LoraWeights:
        """The LoRA of TensorRT-LLM's `LoraWeights` and `LoraConfig` (docs/lora.md). Raises BU173 for other tensors."""
        from bringup.compile.runtime.lora.reading import read_request

        return read_request(self.manifest, weights, config)

    def check(self, request: Request) -> CheckedRequest:
        """Raises the errors of `add`, without adding the request."""
        if inputs := self.interface.entries[-1].token_inputs:
            names = ", ".join(f"`{spec.name}`" for spec in inputs)
            help = "run one sequence at a time: bringup.load(bundle)"
            raise fail("BU029", f"this model needs {names} besides tokens, which a batch does not support", help=help)
        checked = request.checked()
        check_vocabulary(checked.tokens, self.manifest["vocab_size"])
        checked.shift.check(self.manifest["vocab_size"])
        check_input(len(checked.tokens), self._engine.max_input_len)
        check_context(len(checked.tokens), self._engine.max_tokens)
        self.loras.check(checked.lora, checked.lora_weights)
        return checked

    def add(self, request: Request) -> int:
        """Adds a request, which runs from the next step on if there is room. Returns its number, which is in its
        events.

        Raises BU015 for a token outside the vocabulary, BU016 if the prompt exceeds the context, BU019 and BU024 for
        settings out of range, BU029 for a model with inputs besides tokens. For its LoRA: BU620 if its weights must be
        passed, BU621 if there is no memory for them, BU622 if the bundle does not support it.
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
        """Ends a request without another event. False if there is none with that number: it may have finished."""
        found = [job for job in (*self._scheduler.running, *self._scheduler.waiting) if job.id == id]
        for job in found:
            self._end(job)
        return bool(found)

    def _end(self, job: Job) -> None:
        """Removes a request."""
        self._scheduler.stop(job)
        self.loras.release(job.request.lora)

    def step(self) -> list[Event]:
        """Runs the program once; with a draft, also the draft's program, for its proposals. Returns the next tokens of
        each completely processed request, oldest request first.

        The list is empty if only parts of prompts were processed, or there is no request. If a step fails, its
        exception is raised and no token is sampled; all requests wait with their tokens and are recomputed from these.
        Raises RequestFailed, with BU607, if the logits of a request are NaN or infinite: `remove` it to continue.
        """
        with ExitStack() as failed:
            failed.callback(self._scheduler.restart)
            planned = self._scheduler.plan()
            ended = self._run(planned) if planned else []
            failed.pop_all()
        return list(map(self._event, ended))

    def _run(self, planned: Sequence[Planned]) -> list[Drawn]:
        """Processes the planned tokens; returns the next token of each job whose tokens are all processed."""
        start = time.perf_counter()
        if self.drafts:
            self.drafts.follow(self._scheduler.running)
            if not self._scheduler.prefilled and (drawn := self.drafts.run(self._engine, planned, start)) is not None:
                return drawn
        needs_logits = any(each.job.request.needs_logits for each in planned)
        is_drawn = not (self._scheduler.prefilled or needs_logits)
        if is_drawn and self._engine.can_draw([each.cached for each in planned]):
            return self._draw(planned, start)
        run = self._engine.prefill if self._scheduler.prefilled else self._engine.decode
        results: list[Results] = run([each.part() for each in planned])
        seconds = time.perf_counter() - start
        for each, found in zip(planned, results, strict=True):
            check(each, found.logits)
        for each, found in zip(planned, results, strict=True):
            score_prompt(each, found.logits)
            self._add(each, seconds)
        return [
            draw_from(each.job, found.logits[-1]) for each, found in zip(planned, results, strict=True) if each.done
        ]

    def _draw(self, planned: Sequence[Planned], start: float) -> list[Drawn]:
        """As `_run`, for a decode step whose tokens the executor samples."""
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
            self._add(each, seconds)
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
        return Event(job.id, token, reason, job.stats, drawn.score, scores, job.draft_stats if self.drafts else None)

    def _add(self, planned: Planned, seconds: float) -> None:
        """Counts a step of a request without proposals."""
        if planned.add(seconds) and self.drafts:
            self.drafts.count(planned.job, 1)


def load_batch(
    bundle: str | PathLike[str],
    executor: str | None = None,
    *,
    lora_bytes: int = HOST_BYTES,
    lora_fraction: float | None = None,
    draft: str | PathLike[str] | None = None,
    draft_tokens: int | None = None,
) -> Batch:
    """Opens a bundle for several sequences at a time, up to the `--max-batch-size` that it was compiled with.

    Other requests wait. `lora_bytes` is the size of the host's cache of LoRAs. `lora_fraction` limits the LoRA slots to
    a fraction of the host's free memory, which may be fewer slots than `--max-loras`. `executor` and errors are as for
    `load`.

    `draft` is the bundle of a draft, which reads tokens, and proposes up to `draft_tokens` (4) for each request in a
    step. It runs on `executor` too if its target is the same. Raises BU049 if the two bundles do not fit, BU024 for
    `draft_tokens` without `draft`.
    """
    if draft is None and draft_tokens is not None:
        raise fail("BU024", "`draft_tokens` without `draft`", help="pass the bundle of the draft as `draft`")
    opened = open_bundle(bundle, executor)
    drafts = None if draft is None else open_drafts(opened, draft, draft_tokens)
    loras = Loras(opened.interface, opened.executor, host_bytes=lora_bytes, fraction=lora_fraction)
    return Batch(opened, loras, drafts)
