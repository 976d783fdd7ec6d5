"""The results of a step for each request: the next token, and probabilities of tokens."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from bringup.compile.program.program import Draw
from bringup.compile.runtime.acceptance import Proposal, Sampler
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
    token = next_token(shifted(job, logits), request.temperature, request.top_p, job.random, request.top_k)
    return _scored(job, token, logits)


def shifted(job: Job, logits: np.ndarray, after: Sequence[int] = ()) -> np.ndarray:
    """Logits [V] with the biases and penalties of a request, for the token after its own and those of `after`."""
    request = job.request
    return request.shift(logits, [*job.tokens[len(request.tokens) :], *after]) if request.shift else logits


def _scored(job: Job, token: int, logits: np.ndarray) -> Drawn:
    count = job.request.logprobs
    return Drawn(job, token, None if count is None else score_of(logits, token, count))


def sampler_of(job: Job) -> Sampler:
    """The sampler of a draft's proposals, and of the tokens after them."""
    request = job.request
    return Sampler(request.temperature, request.top_p, request.top_k, job.random)


def accept(job: Job, logits_RV: np.ndarray, proposed: Sequence[Proposal]) -> tuple[list[Drawn], int]:
    """The new tokens of a step with proposals, up to an end of sequence, and the number of accepted proposals.

    Row i has the logits for the position of proposal i.
    """
    rows = logits_RV
    if job.request.shift:
        tokens = [each.token for each in proposed]
        rows = np.stack([shifted(job, row, tokens[:at]) for at, row in enumerate(logits_RV)])
    found = sampler_of(job).accept(rows, proposed)
    accepted = len(found) - 1
    end = next((place for place, token in enumerate(found, 1) if token in job.request.eos), None)
    return [_scored(job, token, row) for token, row in zip(found[:end], logits_RV, strict=False)], accepted


def draw_by_executor(job: Job) -> Draw:
    """The settings with which an executor samples the next token."""
    request = job.request
    return draw_of(request.temperature, request.top_p, job.random, request.top_k)
