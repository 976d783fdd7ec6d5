"""A third party's target fuses matrices by its layout, and computes two operations by itself."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from bringup.adapters.apply.fuse import fused, lay_out
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.verify.command import parity_of
from tests.cli.headers import gpt2_config

CLOSE = 1e-5  # largest |difference| over largest |reference| at float32
TOKENS, DECODED = [3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5]
CONFIGS = {
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 20, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128, "attention_bias": True,
    },
    "gpt2": gpt2_config(layers=2, hidden=128, vocab=21, positions=128),
}  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory):
    """The target's module, in a folder of its own with the metadata of a distribution."""
    site = tmp_path_factory.mktemp("site")
    info = site / "numpy_fused-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy-fused\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bringup.targets]\nnumpy-fused = numpy_fused:target\n")
    shutil.copy(Path(__file__).with_name("numpy_fused.py"), site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield importlib.import_module("numpy_fused")
    del sys.modules["numpy_fused"]


@pytest.fixture(scope="module")
def bundle_of(installed, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The bundle of a model for a target: compiled once."""
    folder = tmp_path_factory.mktemp("bundles")

    @cache
    def compiled(model: str, target: str) -> Path:
        return build(job(model), out=folder / f"{model}-{target}", target=target, buckets=(8,), all_logits=True)

    return compiled


def logits(bundle: Path) -> np.ndarray:
    session = load(bundle)
    return np.concatenate([session.prefill(TOKENS), *(session.decode(token)[None] for token in DECODED)])


def job(model: str) -> Job:
    return open_job(model, "dummy", config=CONFIGS[model])


@pytest.mark.parametrize("model", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_logits_are_those_of_torch(model: str, installed, bundle_of) -> None:
    bundles = {target: bundle_of(model, target) for target in ("torch", "numpy-fused")}
    manifest = json.loads((bundles["numpy-fused"] / "manifest.json").read_text("utf-8"))
    assert (manifest["target"], manifest["target_package"]) == ("numpy-fused", "numpy-fused")
    installed.CALLS.clear()
    ours, wanted = logits(bundles["numpy-fused"]), logits(bundles["torch"])
    assert np.abs(ours - wanted).max() <= CLOSE * np.abs(wanted).max()
    steps = 1 + len(DECODED)
    assert {"attention": 2 * steps, "linear": (4 * 2 + 1) * steps} == installed.CALLS


def test_weights_are_the_buffers(bundle_of) -> None:
    """The bundle holds the fused matrices alone, and the program says so."""
    bundle = bundle_of("llama", "numpy-fused")
    with safe_open(bundle / "weights.safetensors", "numpy") as file:
        names = set(file.keys())
        qkv = file.get_tensor("model.layers.1.self_attn.qkv_proj.weight")
    assert qkv.shape == (64, 32)
    assert not {name for name in names if "q_proj" in name or "up_proj" in name.replace("gate_up_proj", "")}
    assert set(lay_out(job("llama").plan, fused()).entries) <= names
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    assert {spec["name"] for spec in manifest["interface"]["weights"]} <= names | manifest["aliases"].keys()


def test_it_is_verified(bundle_of) -> None:
    """By its own executor and, operation by operation, against torch."""
    found = parity_of(load(bundle_of("llama", "numpy-fused")), job("llama"), bisect=True)
    assert found.ok, found.findings
