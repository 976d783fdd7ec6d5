"""Limits on the input of clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`queue`: sequences that may wait. `choices`: answers per request. `body`, `head_bytes`: sizes in bytes.
    `connections`: open connections, at most.

    In seconds: `step`, the longest step of the program; `head` and `body_seconds`, until the headers and the body of a
    request are received; `unread`, while a client reads nothing of an answer; `idle`, between requests of a connection.
    """

    queue: int = 64
    body: int = 1 << 20
    choices: int = 16
    step: float = 600.0
    connections: int = 512
    head_bytes: int = 1 << 14
    head: float = 10.0
    body_seconds: float = 30.0
    unread: float = 60.0
    idle: float = 75.0
    characters: int = 32  # of a text, per token that a prompt may have; languages need 1 to 6
    stops: int = 4  # as OpenAI's API
    stop_characters: int = 256
    logprobs: int = 20  # most likely tokens at each position
    biases: int = 1024  # tokens of `logit_bias`
    templates: int = 2  # chat templates that are rendered at a time, each in a separate process
