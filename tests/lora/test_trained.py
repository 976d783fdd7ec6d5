"""Tensors that an adapter has trained itself, in files with one mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bringup.compile.job import Job, open_job
from bringup.compile.lora.check import check_lora
from tests.lora.written import Case, saved_base

Q, HEAD = "base_model.model.model.layers.0.self_attn.q_proj", "base_model.model.lm_head.weight"
ROWS = "base_model.model.model.{}.token_adapter.trainable_tokens_delta"
WORDS = {"r": 2, "lora_alpha": 2, "target_modules": ["layers.0.self_attn.q_proj"]}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("base")
    saved_base(Case("llama", {}), folder)
    return open_job(checkpoint=str(folder))


@pytest.mark.parametrize(
    ("shapes", "words", "message"),
    [
        ({ROWS.format("embed_tokens"): (2, 32), HEAD: (64, 32)},
         {"trainable_token_indices": [3, 5], "modules_to_save": ["lm_head"]}, ""),
        ({ROWS.format("embed_words"): (2, 32)}, {"trainable_token_indices": {"embed_words": [3, 5]}},
         "embed_words.token_adapter.trainable_tokens_delta` is no factor"),
        ({HEAD: (64, 32), "lm_head.weight": (64, 32)}, {"modules_to_save": ["lm_head"]},
         f"`{HEAD}` and `lm_head.weight` both replace `lm_head.weight`"),
        ({ROWS.format("embed_tokens"): (2, 32), "model.embed_tokens.weight": (64, 32)},
         {"trainable_token_indices": [3, 5], "modules_to_save": ["embed_tokens"]},
         "both replace `model.embed_tokens.weight`"),
    ],
    ids=["none", "rows of an absent module", "two heads", "an embedding and its rows"],
)  # fmt: skip
def test_one_mistake(
    shapes: dict[str, tuple[int, ...]], words: dict[str, object], message: str, job: Job, tmp_path: Path
) -> None:
    shapes = {f"{Q}.lora_A.weight": (2, 32), f"{Q}.lora_B.weight": (32, 2), **shapes}
    save_file(
        {name: np.ones(shape, np.float32) for name, shape in shapes.items()}, tmp_path / "adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps(WORDS | words))
    errors = [finding for finding in check_lora(job, tmp_path).findings if finding.code != "BU161"]
    assert bool(errors) == bool(message)
    assert not message or any(finding.code == "BU168" and message in finding.message for finding in errors)
