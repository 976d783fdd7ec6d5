"""The parameters of a request: those of both endpoints, and those of each.

The names, types and defaults are those of OpenAI's API (https://platform.openai.com/docs/api-reference); `top_k`,
`ignore_eos`, `stop_token_ids` and `chat_template_kwargs` are vLLM's (docs.vllm.ai, "OpenAI-Compatible Server").
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from bringup.compile.serve.error_response import Refused, wrong
from bringup.compile.serve.fields import LARGEST, Fields
from bringup.compile.serve.limits import Limits
from bringup.compile.text.chat import VARIABLES, Message
from bringup.shown import shown

MOST_TEMPERATURE = 2.0
MOST_PENALTY, MOST_BIAS = 2.0, 100.0
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,8}")  # leading zeros would permit two biases for one token
LEAST_SEED = -(1 << 63)  # an int64 in OpenAI's API
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
NEUTRAL: dict[str, tuple[object, ...]] = {  # further fields of vLLM and SGLang, which clients send with these defaults
    "min_p": (0, 0.0), "min_tokens": (0,), "repetition_penalty": (1, 1.0), "length_penalty": (1, 1.0),
    "use_beam_search": (False,), "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,), "no_stop_trim": (False,), "bad_words": ([],), "priority": (0,),
    "add_generation_prompt": (True,), "continue_final_message": (False,), "return_tokens_as_token_ids": (False,),
}  # fmt: skip
COMPLETION_TOKENS = 16  # of an answer of /v1/completions, by default
ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of one request. Each prompt has `count` answers, with consecutive seeds.

    `max_tokens` None means up to the end of the context; 0, only an echo. `usage`: the last part of a stream has token
    counts. `logprobs`: the number of most likely tokens to list at each position; None for no logprobs. `ends`: tokens
    that end an answer, besides the tokenizer's, which `ignore_eos` disables.
    """

    model: str
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int
    count: int
    stops: tuple[str, ...]
    ends: frozenset[int]
    ignore_eos: bool
    stream: bool
    usage: bool
    presence: float
    frequency: float
    bias: Mapping[int, float]
    logprobs: int | None
    echo: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """A request of /v1/completions: prompts as texts, or as token ids."""

    parameters: Parameters
    prompts: list[str | list[int]]

    @property
    def count(self) -> int:
        """The number of answers; each is a sequence."""
        return len(self.prompts) * self.parameters.count


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """A request of /v1/chat/completions."""

    parameters: Parameters
    messages: list[Message]
    variables: Mapping[str, Any]  # of the chat template

    @property
    def count(self) -> int:
        """The number of answers; each is a sequence."""
        return self.parameters.count


def completion(body: Mapping[str, Any], limits: Limits) -> Completion:
    """Parses the body of /v1/completions. Raises Refused, 400."""
    fields = Fields(body)
    echo = fields.flag("echo")
    max_tokens = fields.integer("max_tokens", COMPLETION_TOKENS, minimum=0 if echo else 1)
    logprobs = fields.integer("logprobs", -1, minimum=0, maximum=limits.logprobs)
    fields.unsupported("suffix", "")
    parameters = replace(_common(fields, max_tokens, None if logprobs < 0 else logprobs, limits), echo=echo)
    fields.unsupported("best_of", 1, parameters.count)  # no effect if all answers are returned
    prompts = _prompts(fields.get("prompt"))
    fields.finish()
    _check_choices(len(prompts), "prompt", parameters, limits)
    return Completion(parameters, prompts)


def chat_completion(body: Mapping[str, Any], limits: Limits) -> ChatCompletion:
    """Parses the body of /v1/chat/completions. Raises Refused, 400."""
    fields = Fields(body)
    older, newer = fields.integer("max_tokens", 0, minimum=1), fields.integer("max_completion_tokens", 0, minimum=1)
    if older and newer and older != newer:
        raise wrong("max_tokens", "`max_tokens` and `max_completion_tokens` differ; send one of them")
    for name, *neutral in (
        ("tools", []), ("tool_choice", "none", "auto"),
        ("parallel_tool_calls", True, False), ("functions", []), ("function_call", "none", "auto"),
        ("response_format", {"type": "text"}), ("modalities", ["text"]), ("audio",), ("prediction",),
        ("reasoning_effort",), ("verbosity",), ("web_search_options",),
    ):  # fmt: skip
        fields.unsupported(name, *neutral)
    logprobs = fields.integer("top_logprobs", 0, minimum=0, maximum=limits.logprobs)
    is_scored = fields.flag("logprobs")
    if logprobs and not is_scored:
        raise wrong("top_logprobs", '`top_logprobs` requires `"logprobs": true`')
    parameters = _common(fields, older or newer or None, logprobs if is_scored else None, limits)
    messages = _messages(fields.get("messages"))
    variables = fields.object("chat_template_kwargs")
    fields.finish()
    _check_choices(1, "messages", parameters, limits)
    return ChatCompletion(parameters, messages, _variables(variables) if variables else {})


def _variables(fields: Fields) -> Mapping[str, Any]:
    """Variables of the chat template; those that the server sets are rejected."""
    if own := next((name for name in VARIABLES if name in fields.given), None):
        raise wrong("chat_template_kwargs", f"`chat_template_kwargs` has `{own}`, which the server sets")
    return fields.given


def _common(fields: Fields, max_tokens: int | None, logprobs: int | None, limits: Limits) -> Parameters:
    fields.ignore(IGNORED)
    for name, neutral in NEUTRAL.items():
        fields.unsupported(name, *neutral)
    count = fields.integer("n", 1, minimum=1, maximum=limits.choices)
    stream, options = fields.flag("stream"), fields.object("stream_options")
    if options and not stream:
        raise wrong("stream_options", '`stream_options` requires `"stream": true`')
    usage = bool(options and options.flag("include_usage"))
    if options:
        options.unsupported("include_obfuscation", False)
        options.finish("stream_options.")
    return Parameters(
        model=fields.text("model"),
        max_tokens=max_tokens,
        temperature=fields.number("temperature", 1.0, maximum=MOST_TEMPERATURE),
        top_p=fields.number("top_p", 1.0, maximum=1.0, above=0.0),
        top_k=max(fields.integer("top_k", 0, minimum=-1), 0),  # -1 disables it too, as in vLLM
        seed=fields.integer("seed", secrets.randbelow(LARGEST), minimum=LEAST_SEED),
        count=count,
        stops=_stops(fields.get("stop"), limits),
        ends=_ends(fields.get("stop_token_ids"), limits),
        ignore_eos=fields.flag("ignore_eos"),
        stream=stream,
        usage=usage,
        presence=fields.number("presence_penalty", 0.0, minimum=-MOST_PENALTY, maximum=MOST_PENALTY),
        frequency=fields.number("frequency_penalty", 0.0, minimum=-MOST_PENALTY, maximum=MOST_PENALTY),
        bias=_biases(fields.get("logit_bias"), limits),
        logprobs=logprobs,
    )


def _biases(given: Any, limits: Limits) -> dict[int, float]:
    """The bias of each token id, which is a text in JSON."""
    if given is None:
        return {}
    if type(given) is not dict:
        raise wrong("logit_bias", f"`logit_bias` is {shown(given)}, not an object")
    biases = cast("dict[str, Any]", given)
    if len(biases) > limits.biases:
        raise wrong("logit_bias", f"`logit_bias` has {len(biases):,} tokens, and the limit is {limits.biases:,}")
    for name, value in biases.items():
        if not _TOKEN_ID.fullmatch(name):
            raise wrong("logit_bias", f"`logit_bias` has {shown(name)}, which is not a token id")
        if type(value) not in (int, float) or not -MOST_BIAS <= value <= MOST_BIAS:
            limit = f"not a number from -{MOST_BIAS:g} to {MOST_BIAS:g}"
            raise wrong("logit_bias", f"`logit_bias` of token {name} is {shown(value)}, {limit}")
    return {int(name): float(value) for name, value in biases.items()}


def _stops(given: Any, limits: Limits) -> tuple[str, ...]:
    stops = [given] if type(given) is str else [] if given is None else given
    if type(stops) is not list or not all(type(stop) is str and stop for stop in cast("list[Any]", stops)):
        raise wrong("stop", f"`stop` is {shown(given)}, not a nonempty string or a list of these")
    texts = cast("list[str]", stops)
    if len(texts) > limits.stops:
        raise wrong("stop", f"`stop` has {len(texts)} texts, and the limit is {limits.stops}")
    if any(len(text) > limits.stop_characters for text in texts):
        raise wrong("stop", f"a text of `stop` is longer than the limit of {limits.stop_characters} characters")
    return tuple(texts)


def _ends(given: Any, limits: Limits) -> frozenset[int]:
    tokens = _listed(given) or []
    if given not in (None, tokens) or not all(type(token) is int and token >= 0 for token in tokens):
        raise wrong("stop_token_ids", f"`stop_token_ids` is {shown(given)}, not a list of token ids")
    found = frozenset(tokens)
    if len(found) > limits.biases:
        message = f"`stop_token_ids` has {len(found):,} tokens, and the limit is {limits.biases:,}"
        raise wrong("stop_token_ids", message)
    return found


def _prompts(given: Any) -> list[str | list[int]]:
    """A text, token ids, or a list of either."""
    if given is None:
        raise wrong("prompt", "`prompt` is missing")
    prompts = _listed(given)
    if prompts is None or type(prompts[0]) is int:
        prompts = [given]
    if not all(map(_is_prompt, prompts)):
        raise wrong(
            "prompt", f"`prompt` is {shown(given)}, not a nonempty string or list of token ids, or a list of these"
        )
    return prompts


def _listed(given: Any) -> list[Any] | None:
    """A nonempty list; None for anything else."""
    return cast("list[Any]", given) if type(given) is list and given else None


def _is_prompt(given: Any) -> bool:
    """Whether it is a nonempty text or nonempty token ids."""
    if (tokens := _listed(given)) is not None:
        return all(type(token) is int for token in tokens)
    return type(given) is str and bool(given)


def _check_choices(prompts: int, name: str, parameters: Parameters, limits: Limits) -> None:
    if prompts * parameters.count > limits.choices:
        message = f"{prompts * parameters.count} answers are more than the limit of {limits.choices} in a request"
        raise wrong("n" if prompts == 1 else name, message)


def _messages(given: Any) -> list[Message]:
    if (messages := _listed(given)) is None:
        found = "missing" if given is None else "not a list with at least one message"
        raise wrong("messages", f"`messages` is {found}")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(messages)]


def _message(given: Any, place: str) -> Message:
    if type(given) is not dict:
        raise wrong(place, f"`{place}` is {shown(given)}, not an object")
    fields = Fields(cast("dict[str, Any]", given))
    role = fields.text("role")
    if role not in ROLES:
        raise wrong(f"{place}.role", f"`{place}.role` is {shown(role)}, not one of {', '.join(ROLES)}")
    content = _content(fields.get("content"), f"{place}.content")
    fields.unsupported("tool_calls", [])
    fields.ignore(("name", "refusal"))
    fields.finish(f"{place}.")
    return {"role": role, "content": content}


def _content(given: Any, place: str) -> str:
    """A text, or parts of type text."""
    if type(given) is str:
        return given
    if (parts := _listed(given)) is None:
        found = "missing" if given is None else "neither a string nor a list of parts"
        raise wrong(place, f"`{place}` is {found}")
    texts: list[str] = []
    for part in parts:
        words = cast("dict[str, Any]", part) if type(part) is dict else {}
        if words.get("type") != "text" or type(words.get("text")) is not str:
            raise Refused(400, f"`{place}` supports parts of type text only", param=place, code="unsupported_parameter")
        texts.append(words["text"])
    return "".join(texts)


def tokens_left(parameters: Parameters, prompt: int, context: int) -> int:
    """The largest number of tokens of an answer. Raises Refused, 400, if prompt and answer exceed the context."""
    left = context - prompt
    if parameters.max_tokens is None:
        return max(left, 1)
    if parameters.max_tokens > left:
        message = f"the prompt has {prompt:,} tokens and `max_tokens` is {parameters.max_tokens:,}: "
        message += f"together they exceed the context of {context:,}"
        raise Refused(400, message, param="max_tokens", code="context_length_exceeded")
    return max(parameters.max_tokens, 1)  # computing one token, even if unused, gives the logits of the prompt
