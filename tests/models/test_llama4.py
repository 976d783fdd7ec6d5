"""Llama 4 shapes: cases of test_families.py, its config.json, its tensors, and chunks shorter than the context."""

from __future__ import annotations

import json
import shutil
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Llama4Config, Llama4ForConditionalGeneration, Llama4TextConfig, PreTrainedConfig

from bringup import adapt
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import build, check
from bringup.compile.runtime.session import load
from bringup.diagnostics import BringupError
from bringup.graphs.llama4 import Llama4Config as OurConfig
from bringup.spec import TensorInfo
from tests.graphs.published import PUBLISHED
from tests.models import family, parity

SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 1024}
STEPPED = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CASES: dict[str, PreTrainedConfig] = {
    "short-chunks-dense-layers": Llama4TextConfig(
        **SIZES, num_hidden_layers=4, hidden_size=30, intermediate_size=22, intermediate_size_mlp=34,
        num_attention_heads=5, num_key_value_heads=1, head_dim=12, num_local_experts=6, num_experts_per_tok=2,
        interleave_moe_layer_step=2, no_rope_layer_interval=3, attention_chunk_size=9, floor_scale=10, attn_scale=0.7,
    ),
    "more-experts-than-tokens-tied": Llama4TextConfig(
        **SIZES, num_hidden_layers=2, hidden_size=36, intermediate_size=26, num_attention_heads=4,
        num_key_value_heads=2, head_dim=10, num_local_experts=67, num_experts_per_tok=1, no_rope_layers=[0, 1],
        use_qk_norm=False, attention_bias=True, rope_parameters=STEPPED, tie_word_embeddings=True, hidden_act="gelu",
    ),
    "without-experts": Llama4TextConfig(
        **SIZES, num_hidden_layers=3, hidden_size=32, intermediate_size_mlp=42, num_attention_heads=4,
        num_key_value_heads=4, head_dim=8, moe_layers=[], no_rope_layers=[1, 0, 1], attention_chunk_size=33,
        layer_types=["full_attention", "chunked_attention", "chunked_attention"], attn_temperature_tuning=False,
    ),
}  # fmt: skip

VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8, "projector_input_dim": 16, "projector_output_dim": 16, "vision_output_dim": 16,
}  # fmt: skip
SOME = "short-chunks-dense-layers"
# transformers' defaults.
GIVEN: dict[str, Any] = {
    "vocab_size": 202048, "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
}  # fmt: skip


def test_a_model_of_images_and_text(tmp_path: Path) -> None:
    """Its tensors have a longer prefix, and those that see images are dropped."""
    torch.manual_seed(0)
    text = CASES[SOME].to_dict() | {"initializer_range": 0.3}
    Llama4ForConditionalGeneration(Llama4Config(text_config=text, vision_config=VISION)).save_pretrained(tmp_path)
    job = open_job(checkpoint=str(tmp_path))
    report = check(job)
    assert report.findings == []
    seen = [name for name in load_file(tmp_path / "model.safetensors") if not name.startswith("language_model.")]
    assert report.counts["dropped"] == len(seen) > 10
    tokens = parity.random_tokens(20, 131)
    theirs = family.stepwise(parity.load_reference(tmp_path), tokens, 16)
    assert parity.distance(family.eager_logits(job, tokens, 16), theirs).worst <= family.WORST["torch"]


def test_experts_in_many_tensors_are_those_in_one(tmp_path: Path) -> None:
    folder = parity.save_checkpoint(CASES[SOME], tmp_path / "one")
    whole = adapt(open_job(checkpoint=str(folder)))
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name]:
        matrices = tensors.pop(name).transpose(1, 2)  # [e, out, in]
        named = {"gate_proj": 0, "up_proj": 1} if name.endswith("gate_up_proj") else {"down_proj": 0}
        for x, half in named.items():
            for e, matrix in enumerate(matrices.chunk(len(named), 1)[half]):
                tensors[f"{name.rpartition('.')[0]}.{e}.{x}.weight"] = matrix.contiguous()
    other = tmp_path / "many"
    other.mkdir()
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    shutil.copy(folder / "config.json", other)
    job = open_job(checkpoint=str(other))
    assert check(job).findings == []
    apart = adapt(job)
    assert apart.keys() == whole.keys()
    assert all(np.array_equal(apart[name], whole[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["torch", "schedule", "cpu", "iree-cpu"])
def test_chunks_in_rings(target: str, tmp_path: Path) -> None:
    """A ring of 64 rows, which a prompt in parts and the tokens after it fill more than twice."""
    folder = parity.save_checkpoint(CASES[SOME], tmp_path / "checkpoint")
    tokens = parity.random_tokens(150, 131)
    job = open_job(checkpoint=str(folder))
    bundle = build(job, out=tmp_path / "b", target=target, max_seq_len=256, buckets=(32,), all_logits=True)
    session = load(bundle)
    assert session.interface.rewindable == 64 - 9 + 1
    theirs = family.stepwise(parity.load_reference(folder), tokens, 140)
    family.assert_near(parity.run(session, tokens, 140), theirs, "iree-cpu" if target == "iree-cpu" else "torch")


@pytest.mark.parametrize(
    ("source", "billions"),
    [("meta-llama/Llama-4-Scout-17B-16E", 107.8), ("meta-llama/Llama-4-Maverick-17B-128E", 400.7)],
)
def test_the_tensors_of_published_sizes(source: str, billions: float) -> None:
    """Those of transformers' model of the published config, without memory for them."""
    raw = PUBLISHED["llama4"][source]
    text = raw["text_config"] | {"attn_temperature_tuning": True}  # transformers 5 does not read the number of the file
    with torch.device("meta"):
        model = Llama4ForConditionalGeneration(Llama4Config(**raw | {"text_config": text}))
    headers = {key: TensorInfo(key, "bfloat16", tuple(value.shape)) for key, value in model.state_dict().items()}
    of_text = [info for key, info in headers.items() if key.startswith("language_model.")]
    assert sum(prod(info.shape) for info in of_text) / 1e9 == pytest.approx(billions, rel=1e-3)

    def read(info: TensorInfo) -> np.ndarray:
        raise AssertionError("a check reads headers alone")

    checkpoint = Checkpoint(source=source, format="safetensors", headers=headers, config=raw, read=read)
    report = check(open_job(checkpoint=checkpoint))
    assert report.findings == []
    assert report.counts["dropped"] == len(headers) - len(of_text)


@pytest.mark.parametrize("keys", [{}, {"no_rope_layers": [], "attention_chunk_size": None}, {"moe_layers": [1, 99]}])
def test_keys_that_are_absent(keys: dict[str, Any]) -> None:
    whole = json.loads(Llama4TextConfig(**GIVEN | keys).to_json_string(use_diff=False))
    assert OurConfig.from_hf(GIVEN | keys) == OurConfig.from_hf(whole)
    outer = json.loads(Llama4Config(text_config=GIVEN | keys).to_json_string(use_diff=False))
    assert OurConfig.from_hf(outer) == OurConfig.from_hf(GIVEN | keys)


def test_the_head_is_tied_by_the_text_config() -> None:
    """The outer key ties nothing: transformers' model of images and text has no list of tied weights."""
    for inner in (False, True):
        for outer in (False, True):
            raw = {"text_config": GIVEN | {"tie_word_embeddings": inner}, "tie_word_embeddings": outer}
            assert OurConfig.from_hf(raw).tied_head is inner


def test_the_number_for_temperature_tuning_in_published_files() -> None:
    for number, tuned in ((4, True), (0, False)):
        of_number = OurConfig.from_hf(GIVEN | {"attn_temperature_tuning": number})
        assert of_number == OurConfig.from_hf(GIVEN | {"attn_temperature_tuning": tuned})
        assert (of_number.growth is not None) == tuned


CHUNKED = ["chunked_attention"] * 48


@pytest.mark.parametrize(
    ("keys", "code", "key"),
    [
        ({"layer_types": ["full_attention"]}, "BU122", "layer_types"),
        ({"layer_types": ["sliding_attention"] * 48}, "BU122", "layer_types"),
        ({"layer_types": CHUNKED, "attention_chunk_size": None}, "BU121", "attention_chunk_size"),
        ({"attention_chunk_size": 0}, "BU121", "attention_chunk_size"),
        ({"no_rope_layers": [1, 0]}, "BU121", "no_rope_layers"),
        ({"no_rope_layer_interval": 0}, "BU121", "no_rope_layer_interval"),
        ({"interleave_moe_layer_step": 0}, "BU121", "interleave_moe_layer_step"),
        ({"num_local_experts": 0}, "BU121", "num_local_experts"),
        ({"num_experts_per_tok": 17}, "BU124", "num_experts_per_tok"),
        ({"attn_temperature_tuning": None}, "BU121", "attn_temperature_tuning"),
        ({"floor_scale": 0}, "BU121", "floor_scale"),
        ({"for_llm_compressor": True}, "BU122", "for_llm_compressor"),
        ({"partial_rotary_factor": 0.5}, "BU120", "partial_rotary_factor"),
        ({"head_dim": None}, "BU121", "head_dim"),
    ],
)
def test_rejected_configs(keys: dict[str, Any], code: str, key: str) -> None:
    """Each fault is one error."""
    for raw in (GIVEN | keys, {"text_config": GIVEN | keys}):
        with pytest.raises(BringupError) as caught:
            OurConfig.from_hf(raw)
        assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
