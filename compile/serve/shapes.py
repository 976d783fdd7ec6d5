"""Answers in the form of OpenAI's API: whole ones, and the parts of a stream.

https://platform.openai.com/docs/api-reference/completions/object and …/chat/object, …/chat-streaming
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from bringup.compile.serve.answer import Ending


class Shape(ABC):
    """Of the answers to one request: what they share is decided once."""

    prefix, whole, part = "", "", ""

    def __init__(self, model: str) -> None:
        self._model, self._id, self._created = model, f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())

    def answer(self, texts: Sequence[str], endings: Sequence[Ending | None], usage: dict[str, int]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self.choice(*each) for each in zip(range(len(texts)), texts, endings, strict=True)]
        return self._outer(self.whole, choices) | {"usage": usage}

    def event(self, index: int, text: str, ending: Ending | None) -> dict[str, Any]:
        """A part of a stream: more text of a choice, or its end."""
        return self._outer(self.part, [self.delta(index, text, ending)])

    def last(self, usage: dict[str, int]) -> dict[str, Any]:
        """The part of a stream that counts tokens."""
        return self._outer(self.part, []) | {"usage": usage}

    def begin(self, index: int) -> list[dict[str, Any]]:
        """Parts that come before the text of a choice."""
        return []

    @abstractmethod
    def choice(self, index: int, text: str, ending: Ending | None) -> dict[str, Any]:
        """A whole choice."""
        ...

    @abstractmethod
    def delta(self, index: int, text: str, ending: Ending | None) -> dict[str, Any]:
        """A part of a choice."""
        ...

    def _outer(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


class CompletionShape(Shape):
    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def choice(self, index: int, text: str, ending: Ending | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": ending}

    delta = choice


class ChatShape(Shape):
    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, text: str, ending: Ending | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": ending}

    def delta(self, index: int, text: str, ending: Ending | None) -> dict[str, Any]:
        return self._delta(index, {"content": text} if text else {}, ending)

    def begin(self, index: int) -> list[dict[str, Any]]:
        return [self._outer(self.part, [self._delta(index, {"role": "assistant", "content": ""}, None)])]

    @staticmethod
    def _delta(index: int, words: dict[str, str], ending: Ending | None) -> dict[str, Any]:
        return {"index": index, "delta": words, "logprobs": None, "finish_reason": ending}


def usage_of(prompt: int, completion: int) -> dict[str, int]:
    """Tokens of the prompts, each counted once, and of all answers."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
