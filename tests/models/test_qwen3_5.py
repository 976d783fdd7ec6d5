"""Qwen3.5 shapes: cases of test_families.py, both forms of its config.json, and its tensors."""

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
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3_5TextConfig,
)

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from bringup.compile.verify.command import verify
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import shape_of
from bringup.graphs.qwen3_5 import Qwen3_5Config as OurConfig
from bringup.spec import TensorInfo
from tests.graphs.published import PUBLISHED
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
MROPE = {
    "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [3, 2, 1],
    "mrope_interleaved": True,
}  # fmt: skip
# As in test_qwen3_next.py: the epsilons bound how much a DeltaNet enlarges the rounding of float32.
CASES: dict[str, PreTrainedConfig] = {
    "sections-of-rope": Qwen3_5TextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=30, intermediate_size=44, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, linear_key_head_dim=12, linear_value_head_dim=10, linear_num_key_heads=2,
        linear_num_value_heads=6, rms_norm_eps=1e-3, layer_types=["linear_attention", "full_attention"],
        rope_parameters=MROPE,
    ),
    "biases-tied": Qwen3_5TextConfig(
        **SIZES, num_hidden_layers=3, hidden_size=36, intermediate_size=50, num_attention_heads=3,
        num_key_value_heads=1, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=16, linear_num_key_heads=3,
        linear_num_value_heads=3, linear_conv_kernel_dim=3, rms_norm_eps=2e-3, attention_bias=True,
        tie_word_embeddings=True, hidden_act="gelu", full_attention_interval=2,
    ),
    "one-key-head": Qwen3_5TextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=28, intermediate_size=30, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=8, linear_num_key_heads=1,
        linear_num_value_heads=4, rms_norm_eps=1e-3, layer_types=["full_attention", "linear_attention"],
    ),
}  # fmt: skip
VISION: dict[str, Any] = dict(
    depth=1, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=2, num_position_embeddings=16,
    out_hidden_size=30,
)  # fmt: skip

# transformers' defaults, with a head that is not tied.
GIVEN: dict[str, Any] = {
    "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
    "num_attention_heads": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """The first case as a model of images and text, with a tensor of a draft model."""
    folder = tmp_path_factory.mktemp("published")
    text = parity.save_checkpoint(CASES["sections-of-rope"], tmp_path_factory.mktemp("text"))
    config = Qwen3_5Config(text_config=CASES["sections-of-rope"].to_dict(), vision_config=VISION)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    own = load_file(text / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): array for name, array in own.items()}
    assert renamed.keys() < tensors.keys()
    tensors |= renamed | {"mtp.fc.weight": own["model.norm.weight"].clone()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_the_text_model_of_a_published_file(published: Path) -> None:
    job = open_job(checkpoint=str(published))
    assert job.graph.config.family == "qwen3_5"
    report = check(job)
    assert report.ok, report.findings
    apart = [name for name in job.checkpoint.headers if name.startswith(("model.visual.", "mtp."))]
    assert len(apart) > 10
    assert report.counts["dropped"] == len(apart)
    tokens = parity.random_tokens(40, 131)
    model = AutoModelForImageTextToText.from_pretrained(published, dtype="auto", **parity.PLAIN).eval()
    theirs = family.stepwise(model, tokens, 36)
    ours = family.eager_logits(job, tokens, 36)
    assert parity.distance(ours, theirs).worst <= family.WORST["torch"]


@pytest.mark.slow
def test_verify_of_a_published_file(published: Path) -> None:
    found = verify("qwen3_5", str(published))
    assert found.ok
    assert found.reference.startswith("transformers")


@pytest.mark.parametrize(
    ("outer", "inner", "kind"), [(True, False, AutoModelForImageTextToText), (False, True, AutoModelForCausalLM)]
)
def test_a_head_that_one_of_two_places_ties(
    outer: bool, inner: bool, kind: Any, published: Path, tmp_path: Path
) -> None:
    """Without a head, one of transformers' two classes ties it, by the place that it reads; the other has none."""
    raw = json.loads((published / "config.json").read_text("utf-8")) | {"tie_word_embeddings": outer}
    raw["text_config"]["tie_word_embeddings"] = inner
    (tmp_path / "config.json").write_text(json.dumps(raw))
    tensors = load_file(published / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    job = open_job(checkpoint=str(tmp_path))
    assert check(job).ok
    tokens = parity.random_tokens(8, 131)
    model = kind.from_pretrained(tmp_path, dtype="auto", **parity.PLAIN).eval()
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    parity.assert_near(family.eager_logits(job, tokens, 7), family.stepwise(model, tokens, 7), "float32")


@pytest.mark.parametrize(
    ("name", "source", "kind", "billions"),
    [
        ("qwen3_5", "Qwen/Qwen3.5-27B", Qwen3_5Config, 26.9),
        ("qwen3_5_moe", "Qwen/Qwen3.6-35B-A3B", Qwen3_5MoeConfig, 34.7),
    ],
)
def test_the_tensors_of_published_sizes(name: str, source: str, kind: Any, billions: float) -> None:
    """Those of transformers' model of the published config, without memory for them."""
    raw = PUBLISHED[name][source]
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(kind(**raw))
    headers = {key: TensorInfo(key, "bfloat16", tuple(value.shape)) for key, value in model.state_dict().items()}
    of_text = [info for key, info in headers.items() if "visual" not in key]
    assert sum(prod(info.shape) for info in of_text) / 1e9 == pytest.approx(billions, rel=2e-3)

    def read(info: TensorInfo) -> np.ndarray:
        raise AssertionError("a check reads headers alone")

    checkpoint = Checkpoint(source=source, format="safetensors", headers=headers, config=raw, read=read)
    report = check(open_job(checkpoint=checkpoint))
    assert report.ok
    assert report.findings == []
    assert report.counts["dropped"] == len(headers) - len(of_text)


def test_keys_that_are_absent() -> None:
    whole = json.loads(Qwen3_5TextConfig(**GIVEN).to_json_string(use_diff=False))
    assert OurConfig.from_hf(GIVEN) == OurConfig.from_hf(whole)


def test_the_text_config_of_a_whole_config() -> None:
    whole = json.loads(Qwen3_5Config(text_config=GIVEN | {"rope_parameters": MROPE}).to_json_string(use_diff=False))
    assert OurConfig.from_hf(whole) == OurConfig.from_hf(GIVEN | {"rope_parameters": MROPE})


def test_the_parameters_of_the_default_sizes() -> None:
    job = open_job("qwen3_5", "dummy", config=GIVEN)
    shapes = {name: shape_of(declared.axes) for name, declared in job.graph.signature().params.items()}
    assert shapes["model.layers.0.mixer.in_proj_qkv.weight"] == (8192, 4096)
    assert shapes["model.layers.0.mixer.in_proj_z.weight"] == (4096, 4096)
    assert shapes["model.layers.3.self_attn.output_gate_proj.weight"] == (4096, 4096)
    stored = {name.partition("layers.")[2]: info.shape for name, info in job.checkpoint.headers.items()}
    assert (*stored["0.linear_attn.in_proj_a.weight"],) == (32, 4096)
    assert (*stored["3.self_attn.q_proj.weight"],) == (8192, 4096)


@pytest.mark.parametrize(
    ("keys", "code", "key"),
    [
        ({"attn_output_gate": False}, "BU122", "attn_output_gate"),
        ({"mamba_ssm_dtype": "bfloat16"}, "BU122", "mamba_ssm_dtype"),
        ({"output_gate_type": "sigmoid"}, "BU122", "output_gate_type"),
        ({"mlp_only_layers": [1]}, "BU122", "mlp_only_layers"),
        ({"hidden_act": "quick_gelu"}, "BU122", "hidden_act"),
        ({"linear_num_value_heads": 24}, "BU121", "linear_num_value_heads"),
        ({"layer_types": ["full_attention"]}, "BU122", "layer_types"),
        ({"rope_parameters": MROPE | {"mrope_section": [3, 3]}}, "BU121", "mrope_section"),
        ({"rope_parameters": MROPE | {"mrope_section": "nonsense"}}, "BU121", "mrope_section"),
        ({"rope_parameters": MROPE | {"mrope_interleaved": "nonsense"}}, "BU121", "mrope_interleaved"),
        ({"num_experts": 4}, "BU120", "num_experts"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], code: str, key: str) -> None:
    for raw in (GIVEN | keys, {"text_config": GIVEN | keys}):
        with pytest.raises(BringupError) as caught:
            OurConfig.from_hf(raw)
        assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
