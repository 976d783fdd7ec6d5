"""Correctness of kernels and models: each launch compared with float64, complete models with transformers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cards import tables
from benchmarks.cards.failures import FAILURES, reason
from benchmarks.cards.launches import checked
from benchmarks.cards.rows import Model, save
from bringup.compile.gpu.executor import GpuExecutor
from bringup.compile.gpu.trial.steps import trial_steps
from bringup.compile.job import open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.sampling import next_token
from bringup.compile.runtime.session import Session, load


@dataclass(frozen=True)
class Sizes:
    """Of a bundle: tokens of the prompts that it is compiled for, the context, and sequences of a step at most."""

    prompts: tuple[int, ...]
    context: int
    sequences: int


# Decode of 300 keys, in permuted blocks: several parts of split attention; 3 of 4 sequences: one is padding.
# Prompts of more than 128 tokens have kernels of their own.
ON_CARD, DRY = Sizes((32, 192), 1024, 4), Sizes((32,), 128, 2)
STEPS = 40  # new tokens: past a prompt of 32 the second block begins at 64
SAMPLED = ((0.0, 1.0, 0), (1.0, 1.0, 0), (0.8, 0.9, 0), (1.2, 0.9, 40))  # temperature, top_p, top_k
# Of a launch: its sums in another order; one rounding of 8 bits to each result, and of what it stores on the way.
LAUNCH = {"float32": 2e-5, "bfloat16": 3e-2}
# Of logits, against transformers' own forward in float32 with the same weights.
LOGITS = {"float32": 2e-4, "bfloat16": 6e-2}


def rows(
    models: Sequence[Model], capability: str, executor: str, dtypes: Sequence[str], sizes: Sizes, budget: float
) -> Iterator[dict[str, Any]]:
    """A row for each kernel and each whole model that is begun within so many seconds: `error`, `limit`, `ok`.

    Or `not run` with the reason: an error of a model does not end the others.
    """
    begin = time.perf_counter()
    for model, dtype in product(models, dtypes):
        about = {"model": model.name, "dtype": dtype}
        if time.perf_counter() - begin > budget:
            yield {**about, "not run": f"the {budget:.0f} seconds of this part were over", "ok": True}
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                for row in _of_model(model, dtype, capability, executor, Path(folder), sizes):
                    yield {**about, **row}
            except FAILURES as error:
                yield {**about, "not run": reason(error), "ok": False}


def _of_model(
    model: Model, dtype: str, capability: str, executor: str, folder: Path, sizes: Sizes
) -> Iterator[dict[str, Any]]:
    save(model, str(folder / "checkpoint"), dtype, "cpu")
    job = open_job(checkpoint=str(folder / "checkpoint"))
    prompts = [prompt for prompt in sizes.prompts if model.longest is None or prompt <= model.longest]
    bundle = build(
        job, out=folder / "bundle", target=f"cuda:{capability}", max_seq_len=sizes.context, buckets=prompts,
        max_batch_size=sizes.sequences,
    )  # fmt: skip
    vocabulary = job.graph.config.vocab_size
    tokens = np.random.default_rng(0).integers(0, vocabulary, max(prompts) + STEPS).tolist()
    with load(bundle, executor) as session:
        assert isinstance(session.executor, GpuExecutor)
        worst: dict[tuple[str, str, str], float] = {}
        for step in trial_steps(session.interface, vocabulary, session.executor):
            for each in checked(session.executor, step):
                key = each.entry, each.kernels, each.launch
                worst[key] = max(worst.get(key, 0.0), each.error)
        for (entry, kernels, launch), error in worst.items():
            limit = LAUNCH[dtype]
            named = {"what": f"{entry}: {launch}", "kernels": kernels}
            yield {**named, "error": error, "limit": limit, "ok": error <= limit}
        found = {prompt: _logits(session, tokens, prompt) for prompt in prompts}
        yield {"what": tables.SAMPLED, "kernels": "draw", **_sampled(session, tokens[: prompts[0]])}
    wanted = _transformers(folder / "checkpoint", tokens)
    far = [np.abs(logits - wanted[begin - 1 :][: len(logits)]).max() for begin, logits in found.items()]
    error, limit = float(max(far) / np.abs(wanted).max()), LOGITS[dtype]
    yield {"what": tables.LOGITS, "kernels": "all", "error": error, "limit": limit, "ok": error <= limit}


def _logits(session: Session, tokens: list[int], prompt: int) -> np.ndarray:
    """Logits [1 + STEPS, V] of the last token of a prompt, and of the tokens after it, which are decoded."""
    session.reset()
    more = tokens[prompt : prompt + STEPS]
    return np.stack([session.prefill(tokens[:prompt])[-1], *(session.decode(token) for token in more)])


def _sampled(session: Session, prompt: list[int]) -> dict[str, Any]:
    """How many tokens that the device draws are not those that the host draws from its logits."""
    wrong = 0
    for temperature, top_p, top_k in SAMPLED:
        ours = list(
            session.generate(prompt, max_new_tokens=STEPS, temperature=temperature, top_p=top_p, top_k=top_k, seed=1)
        )
        random = np.random.default_rng(1)
        session.reset()
        logits = session.prefill(prompt)[-1]
        for token in ours:
            wrong += token != next_token(logits, temperature, top_p, random, top_k)
            logits = session.decode(token)
    return {"error": float(wrong), "limit": 0.0, "ok": wrong == 0}


def _transformers(checkpoint: Path, tokens: list[int]) -> np.ndarray:
    """Logits [N, V] by transformers' own code in float32."""
    import torch
    import transformers

    kind: Any = transformers.AutoModelForCausalLM  # whose type is only partly known
    model = kind.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()
