"""Limits on the input of clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`queue`: sequences that wait besides those that run. `choices`: answers of a request. `body`, `head_bytes`: bytes
    of one.
    `step` seconds until a step of the program counts as one that does not end.

    `connections` that are open at a time. Seconds: `head` until the headers of a request are there, `body_seconds`
    until its body is, `unread` while a client takes nothing of an answer, `idle` of a connection between requests.
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
    characters: int = 32  # of a text for each token that a prompt may have; languages take 1 to 6
    stops: int = 4  # as OpenAI's API
    stop_characters: int = 256
    logprobs: int = 20  # likeliest tokens of each place
    biases: int = 1024  # tokens of `logit_bias`
    templates: int = 2  # chat templates that are rendered at a time, in processes of their own
