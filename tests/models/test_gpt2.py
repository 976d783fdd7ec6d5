"""GPT-2 as transformers saves it and as OpenAI published it: parity with transformers, and that verify can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.verify.command import parity_of, verify
from bringup.diagnostics import BringupError
from bringup.graphs.config.neutral import NEUTRAL
from bringup.graphs.gpt2 import SIZES
from bringup.graphs.gpt2 import GPT2Config as OurConfig
from tests.models import family, parity


def shape(layers: int, heads: int, hidden: int, **more: Any) -> GPT2Config:
    return GPT2Config(vocab_size=149, n_positions=1024, n_layer=layers, n_head=heads, n_embd=hidden, **more)


CASES = {
    "saved": shape(2, 3, 48),
    "original": shape(2, 5, 40, scale_attn_by_inverse_layer_idx=True, n_inner=50, layer_norm_epsilon=1e-3),
    "untied-gelu": shape(2, 3, 36, activation_function="gelu", scale_attn_weights=False, tie_word_embeddings=False),
    "tanh-gelu-upcast": shape(2, 1, 32, activation_function="gelu_pytorch_tanh", reorder_and_upcast_attn=True),
}
BFLOAT16 = ("saved",)


def save(name: str, folder: Path, dtype: str = "float32") -> Path:
    parity.save_checkpoint(CASES[name], folder, dtype)
    if name == "original":
        as_published(folder)
    return folder


def write(name: str, folder: Path, dtype: str = "float32") -> family.Written:
    return family.Written(save(name, folder, dtype), folder)


def as_published(folder: Path) -> None:
    """The keys of openai-community/gpt2: no `transformer.`, no head, and the mask buffers of old versions."""
    file, positions = folder / "model.safetensors", CASES["original"].n_positions
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    for layer in range(CASES["original"].n_layer):
        mask = torch.ones(positions, positions, dtype=tensors["wte.weight"].dtype).tril()
        tensors[f"h.{layer}.attn.bias"] = mask.view(1, 1, positions, positions)
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    assert "wte.weight" in tensors
    assert "lm_head.weight" not in tensors
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.slow
def test_chunks_and_padding(tmp_path: Path) -> None:
    parity.assert_chunks_and_padding(save("saved", tmp_path / "model"), tmp_path / "bundle")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("original", {"scale_attn_by_inverse_layer_idx": False}),
        ("original", {"layer_norm_epsilon": 1e-5}),
        ("untied-gelu", {"scale_attn_weights": True}),
        ("untied-gelu", {"activation_function": "gelu_new"}),
    ],
)
def test_every_setting_matters(name: str, setting: dict[str, Any], tmp_path: Path) -> None:
    """Nor would it if a setting were overlooked."""
    parity.assert_setting_matters(save(name, tmp_path), **setting)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpt2_124m(dtype: str, tmp_path: Path, record_property) -> None:
    job = open_job("gpt2", "dummy", dtype=dtype)
    model = full_size(job).to(getattr(torch, dtype)).eval()
    tokens = parity.random_tokens(parity.PROMPT + parity.STEPS, model.config.vocab_size)
    ours = parity.run_all(job, tokens, "cpu", tmp_path / "bundle")
    record_property("parity", str(parity.assert_near(ours, parity.logits_of(model, tokens), dtype)))


def full_size(job: Job) -> GPT2LMHeadModel:
    """transformers' GPT-2 124M with the job's dummy weights."""
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager"))
    tensors = {
        f"transformer.{name}": torch.from_numpy(job.checkpoint.read(info).astype("float32"))
        for name, info in job.checkpoint.headers.items()
    }
    left = model.load_state_dict(tensors, strict=False)
    assert left.missing_keys == ["lm_head.weight"]  # tied
    assert not left.unexpected_keys
    return model


# --- that verify finds a mistake


HEADS_MIXED_UP = '''
from bringup.adapters.algebra.expr import S
from bringup.adapters.gpt2 import adapter as published
from bringup.adapters.planning.adapter import Adapter


def adapter(config):
    """GPT-2's table but for one mistake that no shape shows: the rows of attn.c_proj as if channel by channel."""
    table = published(config)
    built = Adapter("gpt2", table.defaults, table.prefix, drops=table.drops)
    for rule in table.rules:
        built[rule.pattern.replace("attn.c_proj|", "")] = rule.expr
    built["transformer.h.{L}.attn.c_proj.weight"] = S("h.{L}.attn.c_proj.weight", "(d h) m")
    built["transformer.h.{L}.attn.c_proj.bias"] = S("h.{L}.attn.c_proj.bias")
    return built
'''


@pytest.mark.slow
def test_verify_finds_the_first_wrong_module(tmp_path: Path) -> None:
    source, table = str(save("original", tmp_path / "model")), tmp_path / "table.py"
    table.write_text(HEADS_MIXED_UP)
    assert verify("gpt2", source).ok
    wrong = open_job(checkpoint=source, adapter=str(table))
    session = load(build(wrong, out=tmp_path / "b", target="torch", max_seq_len=64, buckets=(64,)))
    found = parity_of(session, wrong, 48, 8)
    assert not found.ok
    (finding,) = found.findings
    assert (finding.code, finding.parameter) == ("BU701", "transformer.h.0.attn.c_proj")
    assert finding.sources == ("transformer.h.0.attn.c_proj.weight", "transformer.h.0.attn.c_proj.bias")
    # the same bundle with the right table: every module is right, so that what was compiled must be wrong
    (finding,) = parity_of(session, open_job(checkpoint=source), 48, 8).findings
    assert finding.code == "BU702"


# --- config.json


def written(config: GPT2Config, folder: Path) -> dict[str, Any]:
    config.to_json_file(folder / "config.json")
    return json.loads((folder / "config.json").read_text("utf-8"))


@pytest.mark.parametrize("config", [GPT2Config(), *CASES.values()])
def test_configs_are_read(config: GPT2Config, tmp_path: Path) -> None:
    raw = written(config, tmp_path)
    ours = OurConfig.from_hf(raw)
    assert (ours.hidden, ours.num_layers, ours.num_heads) == (config.n_embd, config.n_layer, config.n_head)
    assert (ours.ffn, ours.max_positions) == (config.n_inner or 4 * config.n_embd, config.n_positions)
    assert OurConfig.from_hf(raw | {"n_ctx": config.n_positions, "torch_dtype": "float32"}) == ours


def test_the_published_preset_is_the_default_of_transformers(tmp_path: Path) -> None:
    assert OurConfig.from_hf(SIZES["gpt2"]) == OurConfig.from_hf(written(GPT2Config(), tmp_path))


def test_no_key_is_overlooked(tmp_path: Path) -> None:
    """Whatever transformers writes is known to change no number, or nonsense in it is refused."""
    raw = written(GPT2Config(), tmp_path)
    for key in raw.keys() - NEUTRAL:
        with pytest.raises(BringupError, match=r"BU12[0-2]"):
            OurConfig.from_hf(raw | {key: "nonsense"})


@pytest.mark.parametrize(
    ("code", "key", "changes"),
    [
        ("BU122", "activation_function", {"activation_function": "quick_gelu"}),
        ("BU122", "add_cross_attention", {"add_cross_attention": True}),
        ("BU122", "n_ctx", {"n_ctx": 512}),
        ("BU121", "n_head", {"n_head": 7}),
        ("BU121", "n_embd", {"n_embd": "768"}),
        ("BU121", "n_layer", {"n_layer": None}),
        ("BU120", "rotary_dim", {"rotary_dim": 64}),
        ("BU120", "sliding_window", {"sliding_window": 40}),
    ],
)
def test_configs_that_are_refused(code: str, key: str, changes: dict[str, Any], tmp_path: Path) -> None:
    raw = written(GPT2Config(), tmp_path) | changes
    with pytest.raises(BringupError) as caught:
        OurConfig.from_hf(raw)
    assert [(finding.code, finding.parameter) for finding in caught.value.findings] == [(code, key)]
