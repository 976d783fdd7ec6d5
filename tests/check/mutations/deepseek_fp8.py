"""DeepSeek-V3 as published: matrices in fp8, with a scale for each block of 16 by 16."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.check.drafts import ROOT
from tests.check.mutations.deepseek import deepseek
from tests.check.mutations.mutation import Trial

BLOCK = 16
SCALE = "weight_scale_inv"
PLAIN = ("norm", "embed_tokens", "lm_head", "mlp.gate.")
ATTENTION = [
    f"model.layers.{{0..2}}.self_attn.{x}.weight"
    for x in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "k_b_proj", "v_b_proj", "o_proj")
]
EXPERTS = ("experts", "shared_experts")


def fp8(trial: Trial) -> None:
    """Every matrix but the router, the embeddings and the head as published: fp8, with a scale a block."""
    for name in [name for name in trial.tensors if not any(part in name for part in PLAIN)]:
        array = trial.tensors[name]
        if array.ndim != 2:
            continue
        rows, columns = (-(-size // BLOCK) for size in array.shape)
        trial.tensors[name] = array.astype(ml_dtypes.float8_e4m3fn)
        trial.tensors[name.replace("weight", SCALE)] = np.ones((rows, columns), np.float32)
    trial.config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}


def lost_scale(trial: Trial) -> None:
    fp8(trial)
    del trial.tensors[f"model.layers.1.mlp.experts.3.up_proj.{SCALE}"]


def renamed_scales(trial: Trial) -> None:
    fp8(trial)
    trial.rename(lambda name: name.replace(f"kv_b_proj.{SCALE}", "kv_b_proj.scale_inv"))


def unsaid(trial: Trial) -> None:
    fp8(trial)
    del trial.config["quantization_config"]


def no_rule(trial: Trial) -> None:
    fp8(trial)
    source = (ROOT / "adapters/deepseek.py").read_text("utf-8")
    trial.adapter = source + '\n\ndef adapter(config):\n    return table("deepseek_v3", config)\n'
    rule = '        deepseek[f"{target}experts.{x}_proj"] = either(whole[x], each) if fused else each\n'
    trial.edit_adapter(rule, "")


def without_experts(trial: Trial) -> None:
    fp8(trial)
    trial.draft.tensors = {name: array for name, array in trial.tensors.items() if ".mlp.experts." not in name}


DEEPSEEK_FP8 = (
    deepseek(
        "lost-scale",
        "One expert's `weight_scale_inv` is missing",
        3,
        "vllm#34930",
        lost_scale,
        "BU101",
        "model.layers.1.mlp.experts.up_proj",
    ),
    deepseek(
        "renamed-scales",
        "The scales of `kv_b_proj` are named `scale_inv`",
        3,
        "llama.cpp#12341",
        renamed_scales,
        "BU101",
        ", ".join(f"model.layers.{{0..2}}.self_attn.{x}_b_proj.weight" for x in "kv"),
    ),
    deepseek(
        "unsaid",
        "The weights are fp8, and the config does not state it",
        3,
        "abliterix#93",
        unsaid,
        "BU137",
        ", ".join([*ATTENTION, "model.layers.0.mlp", *(f"model.layers.{{1..2}}.mlp.{x}" for x in EXPERTS)]),
    ),
    deepseek(
        "no-rule-fp8",
        "The table omits experts in fp8",
        14,
        "tried by hand",
        no_rule,
        "BU103",
        ", ".join(f"model.layers.{{1..2}}.mlp.experts.{x}_proj" for x in ("gate", "up", "down")),
        convert=without_experts,
    ),
)
