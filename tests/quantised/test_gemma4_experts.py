"""Experts of quantised Gemma 4 files, each a module of its own; those of transformers' files are one tensor a matrix.

Names: RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic and -NVFP4 (vLLM's pull requests 39045 and 39256), and files that have
`moe.` before `experts` (41206).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as torch_file
from safetensors.torch import save_file as save_torch_file
from transformers import Gemma4TextConfig

from bringup.adapters.apply.materialise import materialise
from bringup.compile.check.checker import check_job
from bringup.compile.job import open_job
from tests.models import parity
from tests.quantised.formats import FORMATS, Format

EXPERTS = 3
CONFIG = Gemma4TextConfig(
    vocab_size=131, num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, global_head_dim=32, sliding_window=20, max_position_embeddings=256,
    layer_types=["sliding_attention", "full_attention"], hidden_size_per_layer_input=0, enable_moe_block=True,
    num_experts=EXPERTS, top_k_experts=2, moe_intermediate_size=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parity.save_checkpoint(CONFIG, tmp_path_factory.mktemp("gemma4"))


def modules(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same model with three matrices for each expert."""
    found: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        stem, _, last = name.rpartition(".experts.")
        if last == "gate_up_proj":
            width = array.shape[1] // 2
            parts = {"gate_proj": array[:, :width], "up_proj": array[:, width:]}
        else:
            parts = {last: array} if stem else {}
        for expert in range(EXPERTS):
            found |= {f"{stem}.experts.{expert}.{x}.weight": part[expert].copy() for x, part in parts.items()}
        found |= {} if stem else {name: array}
    return found


def fused(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `modules`."""
    found = {name: array for name, array in tensors.items() if ".experts." not in name}
    for layer in range(CONFIG.num_hidden_layers):
        stem = f"model.layers.{layer}.experts."
        gate, up, down = (
            np.stack([tensors[f"{stem}{expert}.{x}_proj.weight"] for expert in range(EXPERTS)])
            for x in ("gate", "up", "down")
        )
        found |= {f"{stem}gate_up_proj": np.concatenate([gate, up], axis=1), f"{stem}down_proj": down}
    return found


def write(plain: Path, form: Format, folder: Path, place: str = "") -> tuple[Path, Path]:
    """Two folders: the checkpoint in the format, and one of the values that it stands for, as transformers saves it."""
    exact = modules(load_file(plain / "model.safetensors"))
    stored: dict[str, np.ndarray] = {}
    for name, array in exact.items():
        target = name.replace(".experts.", f".{place}experts.")
        if not any(part in name for part in (".experts.", ".self_attn.", ".mlp.")) or "norm" in name:
            stored[target] = array
            continue
        parts, exact[name] = form.write(array)
        stem = target.removesuffix("weight")
        stored |= {f"{stem}{part}": np.array(value) for part, value in {**parts, **form.also}.items()}
    raw: dict[str, Any] = json.loads((plain / "config.json").read_text("utf-8"))
    words = {**form.words, "ignore": ["lm_head", "re:.*router.*"]}
    for name, held, more in (("quantised", stored, {"quantization_config": words}), ("exact", fused(exact), {})):
        (folder / name).mkdir()
        save_file(held, folder / name / "model.safetensors", {"format": "pt"})
        (folder / name / "config.json").write_text(json.dumps(raw | more), "utf-8")
    return folder / "quantised", folder / "exact"


@pytest.mark.parametrize(
    ("name", "place"),
    [("ct-fp8-rows", ""), ("ct-nvfp4", ""), ("ct-int4-zeros", ""), ("modelopt-nvfp4-config", "moe.")],
)
def test_the_values_of_each_expert(name: str, place: str, plain: Path, tmp_path: Path) -> None:
    job, other = (open_job(checkpoint=str(each)) for each in write(plain, FORMATS[name], tmp_path, place))
    assert check_job(job).findings == []
    ours, wanted = (materialise(each.plan, each.checkpoint) for each in (job, other))
    assert ours.keys() == wanted.keys()
    for parameter, array in wanted.items():
        np.testing.assert_array_equal(ours[parameter], array, parameter)


@pytest.mark.parametrize("part", ["weight", "weight_scale"])
def test_a_missing_tensor_of_one_expert(part: str, plain: Path, tmp_path: Path) -> None:
    folder, _ = write(plain, FORMATS["ct-fp8-rows"], tmp_path)
    tensors = torch_file(folder / "model.safetensors")
    missing = f"model.layers.1.experts.2.up_proj.{part}"
    del tensors[missing]
    save_torch_file(tensors, folder / "model.safetensors", {"format": "pt"})
    findings = check_job(open_job(checkpoint=str(folder))).findings
    for finding in findings:
        print(finding.code, finding.message, finding.help)
    assert [finding.sources for finding in findings] == [(missing,)]
