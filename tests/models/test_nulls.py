"""Null under every key of every family's config.json: transformers' logits, or a refusal.

Families that transformers has no code for (EXAONE, InternLM, Qwen 1) are in test_config_words.py.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from bringup.graphs.config.neutral import NEUTRAL
from tests.models import family, parity

FAMILIES = (
    "llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "mixtral", "gpt2", "bloom", "gpt_neox", "phi3", "glm4_moe",
    "qwen3_next", "qwen3_5", "qwen3_5_moe", "gpt_oss", "deepseek_v2", "deepseek_v3", "deepseek_v32", "llava", "gemma2",
    "gemma3", "gemma4", "olmo2", "lfm2", "lfm2_moe", "granitemoehybrid", "bamba", "nemotron_h", "falcon_h1",
    "glm_moe_dsa", "llama4", "mistral4", "mistral_large4", "ministral3",
)  # fmt: skip
# Keys that files may have and those that transformers writes here need not.
KEYS = (
    "rope_theta", "rope_scaling", "head_dim", "num_key_value_heads", "sliding_window", "layer_types", "n_inner",
    "norm_topk_prob", "rope_interleave", "original_max_position_embeddings", "partial_rotary_factor",
)  # fmt: skip
OF_ROPE = (
    "truncate", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor",
    "original_max_position_embeddings", "partial_rotary_factor", "type", "factor",
)  # fmt: skip
TOKENS, PROMPT = 20, 15


def nulls(raw: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The config with null under one key after the other, those of its groups as well."""
    for key in {**dict.fromkeys((*raw, *KEYS))}.keys() - NEUTRAL:
        yield key, raw | {key: None}
        group = raw.get(key)
        if isinstance(group, dict):
            for inner in dict.fromkeys((*group, *(OF_ROPE if key.startswith("rope_") else ()))):
                if inner not in NEUTRAL:
                    yield f"{key}.{inner}", raw | {key: group | {inner: None}}


def theirs(folder: Path, tokens: list[int]) -> np.ndarray | None:
    """transformers' logits; None where it takes no such config."""
    try:
        logits = family.stepwise(parity.load_reference(folder), tokens, PROMPT)
    except Exception:  # whatever it meets, it has no logits to compare with
        return None
    return logits if np.isfinite(logits).all() else None


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_null_means_what_transformers_takes_it_for(name: str, tmp_path: Path) -> None:
    cases = importlib.import_module(f"tests.models.test_{name}").CASES
    folder = parity.save_checkpoint(next(iter(cases.values())), tmp_path / "model")
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    tokens = parity.random_tokens(TOKENS, raw.get("vocab_size", raw.get("text_config", raw).get("vocab_size")))
    wrong: list[str] = []
    for key, words in nulls(raw):
        other = shutil.copytree(folder, tmp_path / "null")
        (other / "config.json").write_text(json.dumps(words), "utf-8")
        try:
            job = open_job(checkpoint=str(other))
            check(job).raise_if_errors()
        except BringupError:
            shutil.rmtree(other)
            continue
        wanted = theirs(other, tokens)
        if wanted is not None:
            ours = family.eager_logits(job, tokens, PROMPT)
            if np.abs(ours - wanted).max() > family.WORST["torch"] * np.abs(wanted).max():
                wrong.append(f"{key}: other logits")
        shutil.rmtree(other)
    assert wrong == []
