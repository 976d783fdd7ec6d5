"""GPT-NeoX shapes: cases of test_families.py, and its config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPTNeoXConfig, PreTrainedConfig

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from bringup.graphs.gpt_neox import GPTNeoXConfig as OurConfig
from tests.models import parity

SIZES: dict[str, Any] = {"vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 1024}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0, "partial_rotary_factor": 0.5}
LINEAR = {"rope_type": "linear", "rope_theta": 5e4, "factor": 4.0, "partial_rotary_factor": 1.0}
CASES: dict[str, PreTrainedConfig] = {
    "a-quarter-turns": GPTNeoXConfig(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=112, intermediate_size=66, num_attention_heads=7
    ),
    "one-after-the-other-tied": GPTNeoXConfig(
        **SIZES | {"max_position_embeddings": 24}, hidden_size=36, intermediate_size=50, num_attention_heads=3,
        use_parallel_residual=False, tie_word_embeddings=True, rope_parameters=DYNAMIC, layer_norm_eps=1e-3,
    ),
    "no-biases": GPTNeoXConfig(
        **SIZES, hidden_size=10, intermediate_size=44, num_attention_heads=1, attention_bias=False,
        rope_parameters=LINEAR, hidden_act="gelu_fast",
    ),
}  # fmt: skip


def test_dummy_weights_have_the_published_layout() -> None:
    job = open_job("gpt_neox", "dummy", config=CASES["a-quarter-turns"].to_dict())
    assert check(job).ok
    assert job.checkpoint.headers["layers.0.attention.query_key_value.weight"].shape == (336, 112)


def test_buffers_of_older_versions_are_dropped(tmp_path: Path) -> None:
    folder = parity.save_checkpoint(CASES["a-quarter-turns"], tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    for layer in range(3):
        attention = f"gpt_neox.layers.{layer}.attention."
        tensors[attention + "bias"] = torch.ones(1, 1, 64, 64, dtype=torch.bool).tril()
        tensors[attention + "masked_bias"] = torch.tensor(-1e9)
        tensors[attention + "rotary_emb.inv_freq"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    report = check(open_job(checkpoint=str(folder)))
    assert report.ok
    assert report.counts["dropped"] == 9


# --- config.json

RAW: dict[str, Any] = SIZES | {"hidden_size": 40, "intermediate_size": 60, "num_attention_heads": 5}


def test_absent_keys_are_the_defaults_of_transformers() -> None:
    sizes = {key: value for key, value in RAW.items() if key != "max_position_embeddings"}
    assert OurConfig.from_hf(sizes) == OurConfig.from_hf(GPTNeoXConfig(**sizes).to_dict())


@pytest.mark.parametrize(
    "words",
    [
        {"rotary_pct": 0.5, "rotary_emb_base": 20000},
        {"rotary_pct": 0.5, "rotary_emb_base": 20000, "rope_theta": 20000, "partial_rotary_factor": 0.5},
        {"rotary_pct": 0.5, "rotary_emb_base": 20000, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rotary_pct": 0.5, "rope_parameters": {"rope_type": "default", "rope_theta": 3e4}},
        {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "hidden_act": "gelu_fast"},
    ],
)
def test_older_words_mean_what_transformers_takes_them_for(words: dict[str, Any]) -> None:
    theirs = GPTNeoXConfig.from_dict(RAW | words)
    ours = OurConfig.from_hf(RAW | words)
    assert ours == OurConfig.from_hf(json.loads(theirs.to_json_string(use_diff=False)))
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.rope.partial == theirs.rope_parameters["partial_rotary_factor"]


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU121", "num_attention_heads", {"num_attention_heads": 7}),
        ("BU121", "partial_rotary_factor", {"rotary_pct": 1.5}),
        ("BU121", "head_dim", {"rotary_pct": 0.1}),  # none of 8 channels
        ("BU122", "rope_theta", {"rope_theta": 2e4}),  # transformers reads `rotary_emb_base`, and not this
        ("BU122", "partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("BU122", "hidden_act", {"hidden_act": "quick_gelu"}),
        ("BU120", "num_key_value_heads", {"num_key_value_heads": 1}),
    ],
)
def test_configs_that_are_refused(code: str, key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(RAW | changes)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
