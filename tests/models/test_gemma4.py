"""Gemma 4 shapes: cases of test_families.py, both forms of its config.json, and its tensors."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    AutoModelForImageTextToText,
    Gemma4Config,
    Gemma4TextConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedTextConfig,
    PreTrainedConfig,
)

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.diagnostics import BringupError
from bringup.graphs.core.step import CacheSizes
from bringup.graphs.gemma4 import Gemma4Config as OurConfig
from bringup.spec import TensorInfo
from tests.graphs.published import PUBLISHED
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "vocab_size_per_layer_input": 131, "max_position_embeddings": 1024}
WINDOW, FULL = "sliding_attention", "full_attention"
# The epsilons are so large that the last norm does not undo the scalar of the last layer.
CASES: dict[str, PreTrainedConfig] = {
    "values-of-keys": Gemma4TextConfig(
        **SIZES, num_hidden_layers=3, hidden_size=40, intermediate_size=66, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True,
        sliding_window=9, rms_norm_eps=0.3, layer_types=[WINDOW, FULL, FULL], hidden_size_per_layer_input=0,
        final_logit_softcapping=2.0,
    ),
    "experts-untied": Gemma4TextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=36, intermediate_size=40, num_attention_heads=3,
        num_key_value_heads=3, head_dim=8, global_head_dim=16, sliding_window=20, layer_types=[WINDOW, FULL],
        hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=6, top_k_experts=2,
        moe_intermediate_size=14, tie_word_embeddings=False, attention_bias=True, rms_norm_eps=0.5,
    ),
    "shared-layers-with-inputs": Gemma4TextConfig(
        **SIZES, num_hidden_layers=6, hidden_size=30, intermediate_size=28, num_attention_heads=2,
        num_key_value_heads=1, head_dim=14, global_head_dim=20, sliding_window=33, num_kv_shared_layers=3,
        layer_types=[WINDOW, FULL, WINDOW, FULL, WINDOW, FULL], use_double_wide_mlp=True,
        hidden_size_per_layer_input=10, rms_norm_eps=0.4,
    ),
    "unified": Gemma4UnifiedTextConfig(
        vocab_size=131, num_hidden_layers=4, hidden_size=34, intermediate_size=30, num_attention_heads=4,
        num_key_value_heads=2, head_dim=10, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
        sliding_window=9, num_kv_shared_layers=1, use_double_wide_mlp=True, rms_norm_eps=0.3,
        layer_types=[WINDOW, FULL, WINDOW, FULL], final_logit_softcapping=3.0,
    ),
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 4, "patch_size": 2, "position_embedding_size": 16,
}  # fmt: skip
OF_IMAGES: dict[str, Any] = {"patch_size": 2, "mm_embed_dim": 8, "mm_posemb_size": 4, "output_proj_dims": 8}
OUTER = PUBLISHED["gemma4"]["google/gemma-4-31B"]
GIVEN: dict[str, Any] = OUTER["text_config"]
UNIFIED = {"model_type": "gemma4_unified_text"}


def test_keys_that_are_absent() -> None:
    """They mean what transformers takes them for: `per_layer_config` of its files, and the keys of published ones."""
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    given = dict(zip(needed, (151, 64, 7, 8), strict=True))
    for kind in (Gemma4TextConfig, Gemma4UnifiedTextConfig):
        given["model_type"] = kind.model_type
        for more in ({}, {"attention_k_eq_v": True, "num_global_key_value_heads": 2, "head_dim": 512}):
            whole = json.loads(kind(**given, **more).to_json_string(use_diff=False))
            assert "per_layer_config" in whole
            assert OurConfig.from_hf(given | more) == OurConfig.from_hf(whole)
        window = whole["sliding_window"]
        assert OurConfig.from_hf(given).windows == (window,) * 5 + (None, None)  # the last layer has full attention


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A case as a model of text and images, with keys and values of the layers that share others'."""
    folder, name = tmp_path_factory.mktemp("published"), "shared-layers-with-inputs"
    config = Gemma4Config(text_config=CASES[name].to_dict(), vision_config=VISION)
    save_published(config, name, tmp_path_factory.mktemp("text"), folder)
    tensors = load_file(folder / "model.safetensors")
    for part in ("k_proj", "v_proj", "k_norm"):
        at = "model.language_model.layers.{}.self_attn." + part + ".weight"
        tensors[at.format(5)] = tensors[at.format(1)].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def save_published(config: PreTrainedConfig, case: str, text: Path, folder: Path) -> None:
    """A model of a config whose text model is that of a case."""
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    own = load_file(parity.save_checkpoint(CASES[case], text) / "model.safetensors")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {key.replace("model.", "model.language_model.", 1): array for key, array in own.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def assert_text_model(folder: Path) -> int:
    """The logits of transformers' model of text and images; the number of dropped tensors."""
    job = open_job(checkpoint=str(folder))
    assert job.graph.config.family == "gemma4"
    report = check(job)
    assert report.ok, report.findings
    tokens = parity.random_tokens(40, 131)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto", **parity.PLAIN).eval()
    theirs = family.stepwise(model, tokens, 36)
    assert parity.distance(family.eager_logits(job, tokens, 36), theirs).worst <= family.WORST["torch"]
    return report.counts["dropped"]


def test_the_text_model_of_a_published_file(published: Path) -> None:
    apart = [
        name for name in load_file(published / "model.safetensors") if "vision" in name or ".5.self_attn.k_" in name
    ]
    assert len(apart) > 10
    assert assert_text_model(published) == len(apart) + 1


def test_the_text_model_of_a_unified_file(tmp_path: Path) -> None:
    """Its tensors of images and audio have the names of the published file."""
    audio = {"audio_embed_dim": 8}
    config = Gemma4UnifiedConfig(text_config=CASES["unified"].to_dict(), vision_config=OF_IMAGES, audio_config=audio)
    save_published(config, "unified", tmp_path / "text", tmp_path / "published")
    names = load_file(tmp_path / "published" / "model.safetensors").keys()
    apart = {name for name in names if not name.startswith("model.language_model.")}
    assert {name.split(".")[1] for name in apart} == {"vision_embedder", "embed_vision", "embed_audio"}
    assert assert_text_model(tmp_path / "published") == len(apart)


@pytest.mark.parametrize(
    ("source", "billions"),
    [
        ("google/gemma-4-31B", 30.7), ("google/gemma-4-26B-A4B", 25.2), ("google/gemma-4-E2B", 4.6),
        ("google/gemma-4-E4B", 7.5), ("google/gemma-4-12B", 11.9),
    ],
)  # fmt: skip
def test_the_tensors_of_published_sizes(source: str, billions: float) -> None:
    """Those of transformers' model of the published config, without memory for them."""
    raw = PUBLISHED["gemma4"][source]
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(CONFIG_MAPPING[raw["model_type"]](**raw))
    headers = {key: TensorInfo(key, "bfloat16", tuple(value.shape)) for key, value in model.state_dict().items()}
    of_text = [info for key, info in headers.items() if "language_model" in key]
    assert sum(prod(info.shape) for info in of_text) / 1e9 == pytest.approx(billions, rel=2e-2)

    def read(info: TensorInfo) -> np.ndarray:
        raise AssertionError("a check reads headers alone")

    job = open_job(checkpoint=Checkpoint(source=source, format="safetensors", headers=headers, config=raw, read=read))
    report = check(job)
    assert report.findings == []
    own = len(job.graph.layers) - raw["text_config"]["num_kv_shared_layers"]
    assert len(job.graph.states()) == 2 * own
    assert job.graph.cache_bytes(CacheSizes(context=64)) > 0
    borrowed = job.graph.borrowed()
    assert len(borrowed) == 2 * (len(job.graph.layers) - own)
    if source.endswith("E2B"):
        assert borrowed["model.layers.15.self_attn.cache.k"] == "model.layers.13.self_attn.cache.k"
        assert borrowed["model.layers.34.self_attn.cache.v"] == "model.layers.14.self_attn.cache.v"
        assert len(set(job.graph.layer_classes())) == 4


@pytest.mark.parametrize(
    ("keys", "code", "key"),
    [
        ({"use_bidirectional_attention": "all"}, "BU122", "use_bidirectional_attention"),
        ({"num_kv_shared_layers": 60}, "BU122", "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 56}, "BU122", "num_kv_shared_layers"),
        ({"num_kv_shared_layers": -1}, "BU121", "num_kv_shared_layers"),
        ({"enable_moe_block": True, "top_k_experts": 2, "moe_intermediate_size": 8}, "BU121", "num_experts"),
        ({"num_global_key_value_heads": 5}, "BU121", "num_global_key_value_heads"),
        ({"rope_parameters": {WINDOW: {"rope_type": "default"}}}, "BU121", "rope_parameters"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "BU122", "rope_scaling"),
        ({"per_layer_config": {"5": {"head_dim": 512, "skip": ["mlp"]}}}, "BU122", "per_layer_config"),
        ({"per_layer_config": {"0": {"head_dim": 512}}}, "BU122", "per_layer_config"),
        ({"attn_logit_softcapping": 50.0}, "BU120", "attn_logit_softcapping"),
        (UNIFIED | {"hidden_size_per_layer_input": 8}, "BU122", "hidden_size_per_layer_input"),
        (UNIFIED | {"enable_moe_block": True}, "BU122", "enable_moe_block"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], code: str, key: str) -> None:
    outer = OUTER | ({"model_type": "gemma4_unified"} if UNIFIED.items() <= keys.items() else {})
    for raw in (GIVEN | keys, outer | {"text_config": GIVEN | keys}):
        with pytest.raises(BringupError) as caught:
            OurConfig.from_hf(raw)
        assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
