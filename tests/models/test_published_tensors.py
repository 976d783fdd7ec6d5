"""Families that transformers has no code for: the tensors of a published checkpoint fit, and are read as what they are.

`published_tensors.json` lists names and shapes, and says from where. Which tensor is the gate, and which up, is
compared with llama.cpp's table of names (`gguf.tensor_mapping`), which was written from the published code by others.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import check
from bringup.spec import TensorInfo
from tests.graphs.published import PUBLISHED

HERE = Path(__file__).parent
LISTED: dict[str, Any] = json.loads((HERE / "published_tensors.json").read_text("utf-8"))
ARCHES = {"exaone": gguf.MODEL_ARCH.EXAONE, "internlm": gguf.MODEL_ARCH.LLAMA, "qwen": gguf.MODEL_ARCH.QWEN}
# What published models are said to have, in 10^9 parameters.
BILLIONS = {"exaone": 2.4, "internlm": 7.3, "qwen": 1.8}
# llama.cpp's names for a parameter of ours, where they are not `blk.{L}.attn_q` and the like.
CANONICAL = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip
FUSED = {"attn_q": "attn_qkv", "attn_k": "attn_qkv", "attn_v": "attn_qkv"}


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    listed = LISTED[name]
    return {
        pattern.replace("{L}", str(layer)): tuple(shape)
        for pattern, shape in listed["tensors"].items()
        for layer in (range(listed["layers"]) if "{L}" in pattern else [0])
    }


def job(name: str) -> Job:
    headers = {key: TensorInfo(key, "bfloat16", shape) for key, shape in shapes(name).items()}
    config = PUBLISHED[name][LISTED[name]["checkpoint"]]

    def read(info: TensorInfo) -> np.ndarray:
        raise AssertionError("a check reads headers alone")

    return open_job(checkpoint=Checkpoint(source=name, format="safetensors", headers=headers, config=config, read=read))


@pytest.mark.parametrize("name", LISTED)
def test_the_published_tensors_fit(name: str) -> None:
    report = check(job(name))
    assert report.findings == []
    assert report.counts["tensors"] == len(shapes(name))
    count = sum(prod(shape) for key, shape in shapes(name).items() if "inv_freq" not in key)
    assert count / 1e9 == pytest.approx(BILLIONS[name], rel=0.03)


@pytest.mark.parametrize("name", LISTED)
def test_each_parameter_is_read_from_the_tensor_that_llama_cpp_takes_for_it(name: str) -> None:
    names = gguf.get_tensor_name_map(ARCHES[name], LISTED[name]["layers"])
    compared = 0
    for parameter, entry in job(name).plan.entries.items():
        module = parameter.rpartition(".")[0]
        layer, short = "", module
        if module.startswith("model.layers."):
            _, _, number, short = module.split(".", 3)
            layer = f"blk.{number}."
        (source,) = {source.name for source in entry.sources}
        theirs = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if theirs is None and source.startswith("transformer.h."):  # it has EXAONE's down under `model.layers.h`
            theirs = names.get_name(source.replace("transformer.h.", "model.layers.h."), (".weight", ".bias"))
        wanted = CANONICAL[short]
        wanted = FUSED.get(wanted, wanted) if name == "qwen" else wanted
        tied = short == "lm_head" and "wte" in source
        assert theirs is not None, source
        assert theirs.rpartition(".")[0] == ("token_embd" if tied else f"{layer}{wanted}")
        compared += 1
    assert compared >= 9 * LISTED[name]["layers"]
