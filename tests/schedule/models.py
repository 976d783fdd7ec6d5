"""Tiny models, and their schedules as in bundles."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import GPT2Config, GptOssConfig, LlamaConfig, PreTrainedConfig

from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import Session
from bringup.compile.schedule.codec import schedule_from_json
from bringup.compile.schedule.schedule import Schedule
from tests.models import parity

CONTEXT, PREFILL, VOCAB = 128, 32, 97
COMMON = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "num_hidden_layers": 2, "hidden_size": 32}
CONFIGS: dict[str, PreTrainedConfig] = {
    "gpt2": GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=3),
    "llama": LlamaConfig(**COMMON, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2),
    "gpt_oss": GptOssConfig(
        **COMMON, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=5,
        num_experts_per_tok=2, sliding_window=17,
    ),
}  # fmt: skip


def job_of(name: str, folder: Path) -> Job:
    """A random model of a config."""
    return open_job(checkpoint=str(parity.save_checkpoint(CONFIGS[name], folder / "checkpoint")))


def greedy(session: Session, prompts: Iterable[list[int]], new: int) -> list[list[int]]:
    """`new` greedy tokens after each prompt, each of a sequence of its own."""
    found: list[list[int]] = []
    for prompt in prompts:
        session.reset()
        found.append(list(session.generate(prompt, max_new_tokens=new)))
    return found


def scheduled(job: Job, out: Path, **settings: Any) -> Path:
    """The bundle of a job for the target `schedule`."""
    return build(job, out=out, target="schedule", max_seq_len=CONTEXT, buckets=(PREFILL,), **settings)


def schedule_of(bundle: Path) -> Schedule:
    return schedule_from_json(json.loads((bundle / "schedule.json").read_text("utf-8")))
