"""Mistral Large 4 shapes: cases of test_families.py, its config.json, and the names of its tensors."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, MistralLarge4Config, MistralLarge4TextConfig

from bringup import adapt
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.cli.main import cli
from bringup.compile.job import open_job, with_weights
from bringup.compile.lora.opening import load_lora
from bringup.compile.lora.weights import merged
from bringup.compile.pipeline import check
from bringup.graphs.core.step import CacheSizes
from bringup.graphs.mistral_large4 import MistralLarge4Config as OurConfig
from bringup.spec import TensorInfo
from tests.lora.written import Case, wrapped
from tests.models import family, parity
from tests.models.test_deepseek_v3 import YARN

VISION: dict[str, Any] = {
    "model_type": "pixtral", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 2, "image_size": 4, "patch_size": 2,
}  # fmt: skip
SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}


def seeing(*, tied: bool = False, **text: Any) -> MistralLarge4Config:
    return MistralLarge4Config(text_config=SIZES | text, vision_config=VISION, tie_word_embeddings=tied)


# As in test_deepseek_v32.py, enough heads that keys whose scores are 0 are not at the boundary of the selection.
CASES: dict[str, MistralLarge4Config] = {
    "shared-latents-and-keys-yarn": seeing(
        hidden_size=42, intermediate_size=50, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=3,
        kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14, n_routed_experts=12,
        num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=16, n_group=4, topk_group=2,
        routed_scaling_factor=1.5, index_n_heads=13, index_head_dim=10, index_topk=7, rope_parameters=YARN,
        indexer_types=["full", "shared", "full", "shared"], kv_source_layers=[0, 1, 0, 1], no_rope_layers=[1, 0, 1, 0],
    ),
    "every-layer-selects-biases-tied": seeing(
        tied=True, hidden_size=30, intermediate_size=38, num_hidden_layers=3, num_attention_heads=1,
        num_key_value_heads=1, kv_lora_rank=7, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=9,
        first_k_dense_replace=0, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=14,
        attention_bias=True, index_n_heads=16, index_head_dim=4, index_topk=33, no_rope_layer_interval=2,
        final_logit_softcapping=2.0, rope_parameters={"rope_type": "default", "rope_theta": 100.0}, hidden_act="gelu",
    ),
}  # fmt: skip
CHANGED = {f"vision_config.{key}": [] for key in MistralLarge4Config(vision_config=VISION).vision_config.to_dict()}
SOME = "shared-latents-and-keys-yarn"
TEXT: dict[str, Any] = CASES[SOME].text_config.to_dict()
# transformers' defaults of the keys that every family requires.
GIVEN: dict[str, Any] = {
    "vocab_size": 204800, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 72,
    "num_attention_heads": 64,
}  # fmt: skip


def write(name: str, folder: Path, dtype: str = "float32") -> family.Written:
    """With positive growth below 1: large factors leave one key to each query, which amplifies rounding."""
    file = parity.save_checkpoint(CASES[name], folder, dtype) / "model.safetensors"
    tensors = load_file(file)
    tensors |= {key: tensor / 10 for key, tensor in tensors.items() if key.endswith("ssmax_scaling.s")}
    tensors |= {key: tensor / 2 + 0.5 for key, tensor in tensors.items() if key.endswith("ssmax_scaling.b")}
    save_file(tensors, file, {"format": "pt"})
    return family.Written(folder, folder)


@pytest.mark.parametrize("keys", [{}, {"no_rope_layer_interval": 3, "index_topk_freq": 4, "first_k_dense_replace": 2}])
def test_keys_that_are_absent(keys: dict[str, Any]) -> None:
    whole = json.loads(MistralLarge4TextConfig(**GIVEN | keys).to_json_string(use_diff=False))
    whole = {key: value for key, value in whole.items() if value is not None}
    ours = OurConfig.from_hf(GIVEN | keys)
    assert ours == OurConfig.from_hf(whole)
    assert (ours.growth, ours.q_rank, ours.logit_cap, ours.rope.factor) == (None, None, 30.0, 2048.0)
    outer = json.loads(MistralLarge4Config(text_config=GIVEN | keys).to_json_string(use_diff=False))
    assert OurConfig.from_hf(outer) == ours


@pytest.mark.parametrize("alias", ["num_experts", "num_local_experts"])
def test_other_names_of_the_number_of_experts(alias: str) -> None:
    assert MistralLarge4TextConfig(**GIVEN, **{alias: 64}).n_routed_experts == 64
    assert OurConfig.from_hf(GIVEN | {alias: 64}) == OurConfig.from_hf(GIVEN | {"n_routed_experts": 64})


def test_the_head_is_tied_by_the_outer_key() -> None:
    for inner in (False, True):
        for outer in (False, True):
            raw = {"text_config": GIVEN | {"tie_word_embeddings": inner}, "tie_word_embeddings": outer}
            assert OurConfig.from_hf(raw).tied_head is outer


@pytest.mark.slow
def test_the_tensors_of_the_default_config() -> None:
    """Those of transformers' modules, without memory for them: a trillion values."""
    sources = [layer if layer % 4 == 3 else layer - layer % 4 for layer in range(72)]
    config = MistralLarge4Config(text_config={"kv_source_layers": sources})
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    headers = {key: TensorInfo(key, "bfloat16", tuple(value.shape)) for key, value in model.state_dict().items()}
    of_text = [info for key, info in headers.items() if "vision_tower" not in key and "multi_modal" not in key]
    assert sum(prod(info.shape) for info in of_text) / 1e12 == pytest.approx(1.04, rel=1e-2)

    def read(info: TensorInfo) -> np.ndarray:
        raise AssertionError("a check reads headers alone")

    raw = json.loads(config.to_json_string()) | {"architectures": ["MistralLarge4ForConditionalGeneration"]}
    job = open_job(checkpoint=Checkpoint(source="x", format="safetensors", headers=headers, config=raw, read=read))
    report = check(job)
    assert report.findings == []
    assert report.counts["dropped"] == len(headers) - len(of_text)
    assert len(job.graph.borrowed()) == 72 - len({*sources})


def test_names_of_modules_are_the_same_model(tmp_path: Path) -> None:
    """Files have Mistral's names; transformers can also save those of its modules. A draft's tensors are dropped."""
    folder = parity.save_checkpoint(CASES[SOME], tmp_path / "published")
    whole = adapt(open_job(checkpoint=str(folder)))
    model = parity.load_reference(folder)
    tensors = {key: value.numpy() for key, value in model.state_dict().items()}
    assert "model.language_model.layers.0.self_attn.softmax_scaling.scale" in tensors
    tensors["mtp_dspark.layers.0.attention.wq.weight"] = np.ones((2, 2), np.float32)
    job = open_job(checkpoint=dict_checkpoint(tensors, json.loads((folder / "config.json").read_text("utf-8"))))
    assert check(job).findings == []
    apart = adapt(job)
    assert apart.keys() == whole.keys()
    assert all(np.array_equal(apart[name], whole[name]) for name in whole)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # of transformers, in peft
def test_a_lora_that_names_modules(tmp_path: Path) -> None:
    """peft's names are those of modules, and the merged file has the published ones."""
    folder = write(SOME, tmp_path / "base").checkpoint
    words = {"r": 2, "target_modules": r".*language_model.*\.(q_proj|kv_b_proj|kv_a_proj_with_mqa|wq_b|up_proj)"}
    model = wrapped(parity.load_reference(folder), Case("", words), 0.3)
    model.save_pretrained(tmp_path / "lora")
    merge = ["lora", "merge", str(tmp_path / "lora"), "--checkpoint", str(folder), "-o", str(tmp_path / "merged")]
    result = CliRunner().invoke(cli, merge)
    assert result.exit_code == 0, result.output
    tokens = parity.random_tokens(30, 131)
    ours = family.eager_logits(open_job(checkpoint=str(tmp_path / "merged")), tokens, 29)
    family.assert_near(ours, parity.logits_of(model, tokens), "torch")


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning", "ignore:.*tie_word_emb:UserWarning")
@pytest.mark.filterwarnings("ignore:Setting .save_embedding_layers:UserWarning")
def test_a_lora_of_a_tied_head(tmp_path: Path) -> None:
    """The embedding is unchanged. The name is that of the module: the head's published name is another."""
    folder = write("every-layer-selects-biases-tied", tmp_path / "base").checkpoint
    words = {"r": 2, "target_modules": ["lm_head"]}
    model = wrapped(parity.load_reference(folder), Case("", words), 0.3)
    model.save_pretrained(tmp_path / "lora")
    job = open_job(checkpoint=str(folder))
    loaded = load_lora(job, tmp_path / "lora")
    assert loaded.findings == []
    tokens = parity.random_tokens(30, 131)
    ours = family.eager_logits(with_weights(job, merged(job, loaded)), tokens, 29)
    family.assert_near(ours, parity.logits_of(model, tokens), "torch")


def test_states_and_dtypes() -> None:
    """Layers without rope have shorter rows, which others share; the router and alpha are float32."""
    graph = open_job("mistral_large4", "dummy", config=json.loads(CASES[SOME].to_json_string()), dtype="bfloat16").graph
    at = "model.layers.{}.self_attn.latents"
    assert graph.borrowed() == {at.format(2): at.format(0), at.format(3): at.format(1)}
    rows = [graph.states()[at.format(layer)].sized(CacheSizes(context=64))[-1] for layer in (0, 1)]
    assert rows == [18 + 6, 18]
    declared = graph.signature()
    float32 = {name for name, each in declared.items() if each.dtype == "float32"}
    assert float32 == {"model.rotary.alpha", *(f"model.layers.{layer}.mlp.gate.weight" for layer in (1, 2, 3))}


@pytest.mark.parametrize("name", CASES)
def test_no_key_of_the_text_model_is_overlooked(name: str) -> None:
    family.assert_no_key_is_overlooked(OurConfig, CASES[name].text_config)


@pytest.mark.parametrize(
    ("keys", "code", "key"),
    [
        ({"kv_source_layers": [0, 1, 0]}, "BU121", "kv_source_layers"),
        ({"kv_source_layers": [0, 1, 3, 3]}, "BU122", "kv_source_layers"),
        ({"kv_source_layers": [0, 1, 0, 2]}, "BU122", "kv_source_layers"),  # not its own source
        ({"kv_source_layers": [0, 0, 2, 3]}, "BU122", "kv_source_layers"),  # the source has rope
        ({"kv_source_layers": [0, 0, 2, 0], "no_rope_layers": [1] * 4, "indexer_types": None}, None, None),
        ({"kv_source_layers": [0, 1, 1, 0], "no_rope_layers": [1] * 4}, "BU122", "kv_source_layers"),  # not the latest
        ({"no_rope_layers": []}, "BU121", "no_rope_layers"),
        ({"no_rope_layers": [1, 0]}, "BU121", "no_rope_layers"),
        ({"indexer_types": ["shared", "full", "full", "full"]}, "BU122", "indexer_types"),
        ({"index_head_dim": 4}, "BU121", "index_head_dim"),
        ({"final_logit_softcapping": None}, "BU121", "final_logit_softcapping"),
        ({"norm_topk_prob": False}, "BU122", "norm_topk_prob"),
        ({"q_lora_rank": 20}, "BU120", "q_lora_rank"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "BU122", "rope_parameters"),
    ],
)
def test_configs_that_are_rejected(keys: dict[str, Any], code: str | None, key: str | None) -> None:
    raw = {name: value for name, value in (TEXT | keys).items() if value is not None or name in keys}
    for words in (raw, {"text_config": raw}):
        _, findings = OurConfig.read(words)
        assert [(finding.code, finding.parameter) for finding in findings] == ([(code, key)] if code else [])
