"""The input and output of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, NamedTuple, SupportsIndex, cast

from bringup.arguments import integer, integer_list
from bringup.compile.runtime.lora.weights import LoraWeights, TaskId
from bringup.compile.runtime.sampling import check_sampling
from bringup.compile.runtime.scores import Score, Shift, shift
from bringup.compile.runtime.stats import DraftStats, Stats
from bringup.compile.runtime.token_ids import integers
from bringup.diagnostics import fail
from bringup.shown import shown

Reason = Literal["eos", "length", "context"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how it is continued: by at most `max_new_tokens`, until one of `eos`.

    `temperature`, `top_p`, `top_k` and `seed` are those of `Session.generate`, with the same tokens. `logit_bias` is
    added to the logits before sampling. For tokens in the answer, `presence_penalty` is subtracted once, and
    `frequency_penalty` for each occurrence.

    With `logprobs`, events have scores of the token and of that many of the most likely tokens, from the logits of the
    program; with `prompt_logprobs`, the first event has those of the prompt. A bundle without logits of prompts
    (`build(all_logits=False)`) then processes the prompt one token at a time.

    `lora` is the task id of a LoRA, a number or a name; None and -1 mean none. The first request of a task passes the
    LoRA in `lora_weights`, unless `Batch.loras.add` has added it; others pass the id alone.
    """

    tokens: Iterable[SupportsIndex]
    _: KW_ONLY
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    eos: Iterable[SupportsIndex] = frozenset()
    lora: TaskId | None = None
    lora_weights: LoraWeights | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    logprobs: int | None = None
    prompt_logprobs: bool = False

    def checked(self) -> CheckedRequest:
        """Raises BU015 for an invalid token, BU019 and BU024 for settings out of range."""
        check_sampling(self.temperature, self.top_p)
        return CheckedRequest(
            integers(self.tokens),
            integer("max_new_tokens", self.max_new_tokens, minimum=1),
            float(self.temperature),
            float(self.top_p),
            integer("top_k", self.top_k, minimum=0),
            integer("seed", self.seed, minimum=0),
            frozenset(integer_list("eos", self.eos)),
            *_lora(self.lora, self.lora_weights),
            shift(self.logit_bias, self.presence_penalty, self.frequency_penalty),
            None if self.logprobs is None else integer("logprobs", self.logprobs, minimum=0),
            bool(self.prompt_logprobs),
        )


class CheckedRequest(NamedTuple):
    """A request whose fields are validated and converted."""

    tokens: list[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    eos: frozenset[int]
    lora: TaskId | None
    lora_weights: LoraWeights | None
    shift: Shift
    logprobs: int | None
    prompt_logprobs: bool

    @property
    def needs_logits(self) -> bool:
        """Whether its tokens must be sampled on the host."""
        return bool(self.shift or self.logprobs is not None or self.prompt_logprobs)


def _lora(given: TaskId | None, weights: LoraWeights | None) -> tuple[TaskId | None, LoraWeights | None]:
    task = task_id(given)
    if weights is not None and not isinstance(cast("object", weights), LoraWeights):
        help = "pass the result of `batch.read_lora(path)`"
        raise fail("BU024", f"`lora_weights` is {shown(weights)}, not the weights of a LoRA", help=help)
    if weights is not None and task is None:
        raise fail("BU024", "`lora_weights` without `lora`", help="pass the task id of the LoRA as `lora`")
    return task, weights


def task_id(given: TaskId | None) -> TaskId | None:
    """The id of a LoRA; None for -1 too. Raises BU024 for an invalid one."""
    if given is None or (isinstance(given, str) and given):
        return given
    number = integer("lora", given, minimum=-1)
    return None if number == -1 else number


class Event(NamedTuple):
    """A new token of a request.

    `reason` of the last token: "eos", "length" (`max_new_tokens`) or "context" (the context is full); None before.
    `stats` are those of the steps in which the request took part so far. `score` and `prompt_scores` are set if the
    request has them; the first token of a prompt has no score. `draft` are the counts of a batch with a draft.
    """

    id: int
    token: int
    reason: Reason | None
    stats: Stats
    score: Score | None = None
    prompt_scores: tuple[Score | None, ...] = ()
    draft: DraftStats | None = None
