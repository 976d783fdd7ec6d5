"""The results of a step for each request: the next token, and probabilities of tokens."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from bringup.compile.program.program import Draw
from bringup.compile.runtime.sampling import check_logits, draw_of, next_token
from bringup.compile.runtime.scheduler import Job, Planned
from bringup.compile.runtime.scores import Score, score_of
from bringup.diagnostics import BringupError, Diagnostic


class RequestFailed(BringupError):
    """An error of one request in a step that does not affect the others: its number is `request`."""

    def __init__(self, request: int, *findings: Diagnostic) -> None:
        super().__init__(*findings)
        self.request = request


class Drawn(NamedTuple):
    """The next token of a job."""

    job: Job
    token: int
    score: Score | None = None


@contextmanager
def failing(job: Job) -> Generator[None]:
    """Attributes an error in the block to this request alone."""
    try:
        yield
    except BringupError as error:
        raise RequestFailed(job.id, *error.findings) from None


def check(planned: Planned, logits: np.ndarray) -> None:
    """Raises RequestFailed if logits of a step, [R, V], that the request needs are not finite."""
    job = planned.job
    with failing(job):
        for row in logits if job.scores_prompt else logits[-1:] if planned.done else ():
            check_logits(row, f" of request {job.id}")


def score_prompt(planned: Planned, logits: np.ndarray) -> None:
    """Scores the prompt tokens that follow those of a step: logits [R, V] are of the last R."""
    job = planned.job
    if not job.scores_prompt:
        return
    prompt, end = job.request.tokens, len(planned.cached.tokens)
    for at, row in enumerate(logits, end - len(logits) + 1):
        if at < len(prompt):
            job.prompt_scores[at] = score_of(row, prompt[at], job.request.logprobs or 0)


def draw_from(job: Job, logits: np.ndarray) -> Drawn:
    """Samples the next token from logits [V]."""
    request = job.request
    shifted = request.shift(logits, job.tokens[len(request.tokens) :]) if request.shift else logits
    token = next_token(shifted, request.temperature, request.top_p, job.random, request.top_k)
    return Drawn(job, token, None if request.logprobs is None else score_of(logits, token, request.logprobs))


def draw_by_executor(job: Job) -> Draw:
    """The settings with which an executor samples the next token."""
    request = job.request
    return draw_of(request.temperature, request.top_p, job.random, request.top_k)
