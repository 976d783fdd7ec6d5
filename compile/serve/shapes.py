"""Answers in the format of OpenAI's API: complete ones, and the parts of a stream.

https://platform.openai.com/docs/api-reference/completions/object and …/chat/object, …/chat-streaming
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from bringup.compile.serve.answer import Ending, Piece, Scored

LEAST_LOGPROB = -9999.0  # OpenAI's value for tokens with a probability near 0; JSON has no infinity


class Shape(ABC):
    """The format of the answers to one request.

    `bytes_of` returns the bytes of a token. With `scored`, choices have logprobs; with `counted`, all parts of a stream
    have a usage, which is null except in the last.
    """

    prefix, whole, part = "", "", ""

    def __init__(self, model: str, bytes_of: Callable[[int], bytes], *, scored: bool, counted: bool) -> None:
        self._model, self._id, self._created = model, f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())
        self._bytes_of, self._scored, self._counted = bytes_of, scored, counted

    def answer(
        self, pieces: Sequence[Piece], endings: Sequence[Ending | None], usage: dict[str, int]
    ) -> dict[str, Any]:
        """The body of a response that is not streamed."""
        choices = [self.choice(*each) for each in zip(range(len(pieces)), pieces, endings, strict=True)]
        return self._outer(self.whole, choices) | {"usage": usage}

    def event(self, index: int, piece: Piece, ending: Ending | None) -> dict[str, Any]:
        """A part of a stream: further text of a choice, or its end."""
        return self._part([self.delta(index, piece, ending)])

    def last(self, usage: dict[str, int]) -> dict[str, Any]:
        """The part of a stream with the token counts."""
        return self._part([]) | {"usage": usage}

    def begin(self, index: int) -> list[dict[str, Any]]:
        """The parts before the text of a choice."""
        return []

    @abstractmethod
    def choice(self, index: int, piece: Piece, ending: Ending | None) -> dict[str, Any]:
        """A complete choice."""
        ...

    @abstractmethod
    def delta(self, index: int, piece: Piece, ending: Ending | None) -> dict[str, Any]:
        """A part of a choice."""
        ...

    def logprobs(self, tokens: Sequence[Scored]) -> dict[str, Any] | None:
        """The log probabilities of tokens; None without `logprobs` in the request."""
        return self._logprobs(tokens) if self._scored else None

    @abstractmethod
    def _logprobs(self, tokens: Sequence[Scored]) -> dict[str, Any]: ...

    def _text(self, token: int) -> str:
        """The text of a token; U+FFFD if its bytes are a part of a character."""
        return self._bytes_of(token).decode("utf-8", "replace")

    def _part(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._outer(self.part, choices) | ({"usage": None} if self._counted else {})

    def _outer(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


class CompletionShape(Shape):
    """The format of /v1/completions."""

    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def choice(self, index: int, piece: Piece, ending: Ending | None) -> dict[str, Any]:
        logprobs = self.logprobs(piece.tokens)
        return {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": ending}

    def delta(self, index: int, piece: Piece, ending: Ending | None) -> dict[str, Any]:
        return self.choice(index, piece, ending) | ({} if piece.tokens else {"logprobs": None})

    def _logprobs(self, tokens: Sequence[Scored]) -> dict[str, Any]:
        """`top_logprobs` includes the token itself, as in OpenAI's API, so it may have one entry more."""
        return {
            "tokens": [self._text(each.token) for each in tokens],
            "token_logprobs": [each.score and _number(each.score.logprob) for each in tokens],
            "top_logprobs": [self._likeliest(each) for each in tokens],
            "text_offset": [each.offset for each in tokens],
        }

    def _likeliest(self, scored: Scored) -> dict[str, float] | None:
        if scored.score is None:
            return None
        found: dict[str, float] = {}  # of two tokens with the same text, the first
        for token, logprob in (*scored.score.top, (scored.token, scored.score.logprob)):
            found.setdefault(self._text(token), _number(logprob))
        return found


class ChatShape(Shape):
    """The format of /v1/chat/completions."""

    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, piece: Piece, ending: Ending | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self.logprobs(piece.tokens), "finish_reason": ending}

    def delta(self, index: int, piece: Piece, ending: Ending | None) -> dict[str, Any]:
        words = {"content": piece.text} if piece.text else {}
        return self._delta(index, words, ending, self.logprobs(piece.tokens) if piece.tokens else None)

    def begin(self, index: int) -> list[dict[str, Any]]:
        return [self._part([self._delta(index, {"role": "assistant", "content": ""}, None, None)])]

    def _logprobs(self, tokens: Sequence[Scored]) -> dict[str, Any]:
        scores = [each.score for each in tokens if each.score]
        content = [
            self._entry(score.token, score.logprob) | {"top_logprobs": [self._entry(*each) for each in score.top]}
            for score in scores
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._text(token), "logprob": _number(logprob), "bytes": list(self._bytes_of(token))}

    @staticmethod
    def _delta(
        index: int, words: dict[str, str], ending: Ending | None, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {"index": index, "delta": words, "logprobs": logprobs, "finish_reason": ending}


def _number(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def usage_of(prompt: int, completion: int) -> dict[str, int]:
    """The token counts: of the prompts, each counted once, and of all answers."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
