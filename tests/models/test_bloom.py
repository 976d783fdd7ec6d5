"""BLOOM shapes: cases of test_families.py, under both sets of names, and its config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import BloomConfig, PreTrainedConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from bringup.graphs.bloom import BloomConfig as OurConfig
from bringup.graphs.bloom import alibi_slopes
from tests.models import family, parity

CASES: dict[str, PreTrainedConfig] = {
    "five-heads": BloomConfig(vocab_size=131, hidden_size=40, n_layer=3, n_head=5),
    "one-head-untied": BloomConfig(vocab_size=131, hidden_size=18, n_layer=2, n_head=1, tie_word_embeddings=False),
    "residual-after-norm": BloomConfig(
        vocab_size=131, hidden_size=72, n_layer=2, n_head=12, apply_residual_connection_post_layernorm=True,
        layer_norm_epsilon=1e-3,
    ),
}  # fmt: skip
# What bigscience/bloom has beside the names, heads, sizes and layers that tests choose.
PUBLISHED: dict[str, Any] = {
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "hidden_dropout": 0.0,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True,
    "model_type": "bloom",
    "n_inner": None,
    "offset_alibi": 100,
    "pretraining_tp": 4,
    "seq_length": 2048,
    "skip_bias_add": True,
    "skip_bias_add_qkv": False,
    "slow_but_exact": False,
    "unk_token_id": 0,
    "use_cache": True,
}


def test_parity_under_the_published_names(tmp_path: Path) -> None:
    """The files of bigscience/bloom: no `transformer.`, no head, older words in config.json."""
    parity.save_checkpoint(CASES["five-heads"], tmp_path / "saved")
    sizes = {"vocab_size": 131, "n_embed": 40, "n_layer": 3, "num_attention_heads": 5}
    folder = family.renamed(
        tmp_path / "saved", tmp_path / "published", lambda name: name.removeprefix("transformer."), PUBLISHED | sizes
    )
    tokens, theirs = family.reference(folder)
    ours = family.eager_logits(open_job(checkpoint=str(folder)), tokens, family.PROMPT)
    assert parity.distance(ours, theirs).worst <= family.WORST["torch"]


def test_dummy_weights_have_the_published_layout() -> None:
    job = open_job("bloom", "dummy", config=CASES["five-heads"].to_dict())
    assert check(job).ok
    assert job.checkpoint.headers["h.0.self_attention.query_key_value.weight"].shape == (120, 40)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 8, 12, 16, 25, 112])
def test_slopes_are_those_of_transformers(heads: int) -> None:
    import torch

    row = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]  # of position 1: the slopes themselves
    np.testing.assert_allclose(alibi_slopes(heads), row.numpy(), rtol=1e-6)


SIZES = {"vocab_size": 131, "hidden_size": 40, "n_layer": 3, "n_head": 5}


def test_absent_keys_are_the_defaults_of_transformers() -> None:
    assert OurConfig.from_hf(SIZES) == OurConfig.from_hf(BloomConfig(**SIZES).to_dict())


def test_sizes_go_by_either_name() -> None:
    other = {"vocab_size": 131, "n_embed": 40, "num_hidden_layers": 3, "num_attention_heads": 5}
    assert OurConfig.from_hf(other) == OurConfig.from_hf(SIZES) == OurConfig.from_hf(SIZES | other)


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU121", "n_head", {"n_head": 7}),
        ("BU121", "hidden_size", {"hidden_size": None}),
        ("BU122", "n_inner", {"n_inner": 96}),
        ("BU122", "skip_bias_add_qkv", {"skip_bias_add_qkv": True}),
        ("BU120", "rope_theta", {"rope_theta": 1e4}),
    ],
)
def test_configs_that_are_refused(code: str, key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(SIZES | changes)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
