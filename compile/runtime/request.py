"""What a batch is given, and what it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, NamedTuple, SupportsIndex

from bringup.arguments import whole, whole_numbers
from bringup.compile.runtime.lora.weights import LoraWeights, TaskId
from bringup.compile.runtime.sampling import check_sampling
from bringup.compile.runtime.scores import Score, Shift, shift
from bringup.compile.runtime.stats import Stats
from bringup.compile.runtime.token_ids import integers

Reason = Literal["eos", "length", "context"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how it is continued: by at most `max_new_tokens`, until one of `eos`.

    `temperature`, `top_p` and `seed` are those of `Session.generate`, and give the tokens that it gives; `top_k` leaves
    that many of the likeliest tokens to draw from, 0 all. `logit_bias` is added to the logits of tokens before one
    is drawn; of those that the answer has, `presence_penalty` is taken off once, and `frequency_penalty` for each time.

    With `logprobs` events have scores, of the token and of so many of the likeliest, by the logits as the program gives
    them; with `prompt_logprobs` the first event has those of the prompt. A bundle that gives no logits of prompts
    (`build(all_logits=False)`) then takes in the prompt a token at a time.

    `lora` is the task id of a LoRA, a number or a name; None and -1 are for none. The first request of a task brings
    the LoRA in `lora_weights`, or `Batch.loras.add` has; others name it alone.
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
        """Raises BU015 for what is no token, BU019 and BU024 for settings out of range."""
        check_sampling(self.temperature, self.top_p)
        return CheckedRequest(
            integers(self.tokens),
            whole("max_new_tokens", self.max_new_tokens, least=1),
            float(self.temperature),
            float(self.top_p),
            whole("top_k", self.top_k, least=0),
            whole("seed", self.seed, least=0),
            frozenset(whole_numbers("eos", self.eos)),
            task_id(self.lora),
            self.lora_weights,
            shift(self.logit_bias, self.presence_penalty, self.frequency_penalty),
            None if self.logprobs is None else whole("logprobs", self.logprobs, least=0),
            bool(self.prompt_logprobs),
        )


class CheckedRequest(NamedTuple):
    """A request whose parts have their types."""

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
        """Whether its tokens are no executor's to draw."""
        return bool(self.top_k or self.shift or self.logprobs is not None or self.prompt_logprobs)


def task_id(given: TaskId | None) -> TaskId | None:
    """The id of a LoRA; None for -1 too. Raises BU024 for what is none."""
    if given is None or (isinstance(given, str) and given):
        return given
    number = whole("lora", given, least=-1)
    return None if number == -1 else number


class Event(NamedTuple):
    """A new token of a request.

    `reason` is why it is the last: one of the request's `eos`, its `max_new_tokens`, or a full context; None before.
    `stats` are those of the request so far: of the steps that it had a part in. `score` and `prompt_scores` as the
    request wants them; the first token of a prompt has none, since nothing is before it.
    """

    id: int
    token: int
    reason: Reason | None
    stats: Stats
    score: Score | None = None
    prompt_scores: tuple[Score | None, ...] = ()
