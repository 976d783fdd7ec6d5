"""DeepSeek-V3: MLA, routed and shared experts, a bias for their selection, fp8 blocks, a draft layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.check.drafts import ROOT
from tests.check.mutations.mutation import Mutation, Trial

NAMES = ("gate", "up", "down")
ROUTED = [f"model.layers.{{1..2}}.mlp.experts.{x}_proj" for x in NAMES]
SHARED = [f"model.layers.{{1..2}}.mlp.shared_experts.{x}_proj.weight" for x in NAMES]


def _edit_table(trial: Trial, old: str, new: str) -> None:
    """The table that DeepSeek's versions share, as a user's file."""
    if not trial.adapter:
        source = (ROOT / "adapters/deepseek.py").read_text("utf-8")
        trial.adapter = source + '\n\ndef adapter(config):\n    return table("deepseek_v3", config)\n'
    trial.edit_adapter(old, new)


def correction_bias(trial: Trial) -> None:
    trial.draft.tensors = {n: a for n, a in trial.tensors.items() if "e_score_correction_bias" not in n}


def shared_expert(trial: Trial) -> None:
    trial.draft.tensors = {n: a for n, a in trial.tensors.items() if "layers.2.mlp.shared_experts" not in n}


def values_first(trial: Trial) -> None:
    """Keys and values of a head in the other order; their sizes are equal."""
    _edit_table(trial, 'zip(both.split("x", n, v)', 'zip(reversed(both.split("x", n, v))')


def values_first_in_tensors(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        return array.reshape(4, 2, 8, -1)[:, ::-1].reshape(array.shape)

    for layer in range(trial.draft.depth):
        trial.change(f"model.layers.{layer}.self_attn.kv_b_proj.weight", new)


def rope_in_halves(trial: Trial) -> None:
    trial.config["rope_interleave"] = False


def transposed(trial: Trial) -> None:
    trial.change("model.layers.1.self_attn.kv_a_proj_with_mqa.weight", np.transpose)


def bias_in_file(trial: Trial) -> None:
    """The bias of another revision: the router chooses other experts."""
    name = "model.layers.2.mlp.gate.e_score_correction_bias"
    trial.change(name, lambda array: np.linspace(-2, 2, len(array)).astype(array.dtype))


def untied(trial: Trial) -> None:
    del trial.tensors["lm_head.weight"]


def draft(trial: Trial) -> None:
    """Two layers that predict further tokens; the config speaks of one."""
    for after in (3, 4):
        for name in [name for name in trial.tensors if ".layers.2." in name]:
            trial.tensors[name.replace(".layers.2.", f".layers.{after}.")] = trial.tensors[name]
        trial.tensors[f"model.layers.{after}.eh_proj.weight"] = np.ones((32, 64), np.float32)
    trial.config["num_nextn_predict_layers"] = 1


def wide_expert(trial: Trial) -> None:
    trial.draft.tensors = {name: array.astype(np.float16) for name, array in trial.tensors.items()}
    trial.change("model.layers.2.mlp.experts.5.gate_proj.weight", lambda array: array.astype(np.float32))
    trial.config["dtype"] = "float16"


def fused(trial: Trial) -> None:
    """The two matrices that begin latent attention as one, as kernels want it."""
    for layer in range(trial.draft.depth):
        at = f"model.layers.{layer}.self_attn."
        parts = [trial.tensors.pop(f"{at}{x}.weight") for x in ("q_a_proj", "kv_a_proj_with_mqa")]
        trial.tensors[f"{at}fused_qkv_a_proj_with_mqa.weight"] = np.concatenate(parts)


def compiled(trial: Trial) -> None:
    trial.rename(lambda name: name.replace("layers.2.mlp.", "layers.2.mlp._orig_mod."))


def narrow_experts(trial: Trial) -> None:
    trial.config["moe_intermediate_size"] = 8


def index_drift(trial: Trial) -> None:
    trial.shards = 3

    def change(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text("utf-8"))
        owners, name = index["weight_map"], "model.layers.1.mlp.experts.6.down_proj.weight"
        owners[name] = next(shard for shard in owners.values() if shard != owners[name])
        path.write_text(json.dumps(index), "utf-8")

    trial.on_disk(change)


def no_rule(trial: Trial) -> None:
    _edit_table(trial, '("mlp", "mlp.shared_experts")', '("mlp",)')


def without_shared(trial: Trial) -> None:
    trial.draft.tensors = {name: array for name, array in trial.tensors.items() if "shared_experts" not in name}


def deepseek(key: str, title: str, pain: int, seen: str, spoil, code: str, names: str, **more) -> Mutation:
    return Mutation(
        key=f"deepseek-{key}", title=title, pain=pain, seen=seen, base="deepseek_v3", spoil=spoil, code=code,
        names=names, **more,
    )  # fmt: skip


DEEPSEEK = (
    deepseek(
        "correction-bias",
        "The biases of expert selection are missing",
        1,
        "sglang#29006",
        correction_bias,
        "BU101",
        "model.layers.{1..2}.mlp.gate.e_score_correction_bias",
    ),
    deepseek(
        "shared-expert",
        "A layer's shared expert is missing",
        1,
        "vllm#57108",
        shared_expert,
        "BU101",
        "model.layers.2.mlp.shared_experts",
    ),
    deepseek(
        "values-first",
        "A rule reads values before keys",
        2,
        "sglang#24703",
        values_first,
        "BU701",
        "model.layers.0.self_attn",
        phase="verify",
        convert=values_first_in_tensors,
    ),
    deepseek(
        "rope-in-halves",
        "The config states that RoPE rotates halves",
        2,
        "llama.cpp#3364",
        rope_in_halves,
        "BU701",
        "model.layers.0.self_attn",
        phase="against",
    ),
    deepseek(
        "transposed",
        "The matrix of the MLA latent is transposed in one layer",
        2,
        "vllm#44113",
        transposed,
        "BU102",
        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
    ),
    deepseek(
        "bias-in-file",
        "The bias of one router is of another revision",
        13,
        "huggingface_hub#4725",
        bias_in_file,
        "BU701",
        "model.layers.2.mlp",
        phase="against",
    ),
    deepseek("headless", "DeepSeek's head is missing", 5, "vllm#53019", untied, "BU109", "lm_head.weight"),
    deepseek(
        "draft",
        "There are two layers that predict further tokens, and the config has one",
        7,
        "vllm#16450",
        draft,
        "BU105",
        "model.layers.4",
    ),
    deepseek(
        "wide-expert",
        "One expert of eight is float32",
        8,
        "sglang-jax#276",
        wide_expert,
        "BU135",
        "model.layers.2.mlp.experts.gate_proj",
        warns=True,
    ),
    deepseek(
        "fused",
        "The matrices that begin latent attention are one tensor",
        14,
        "vllm#48972",
        fused,
        "BU101",
        ", ".join(f"model.layers.{{0..2}}.self_attn.{x}.weight" for x in ("q_a_proj", "kv_a_proj_with_mqa")),
    ),
    deepseek(
        "compiled",
        "One MLP was saved from `torch.compile`",
        10,
        "transformers#46650",
        compiled,
        "BU101",
        "model.layers.2.mlp",
    ),
    deepseek(
        "narrow-experts",
        "The config has experts of half the width",
        12,
        "sglang#18189",
        narrow_experts,
        "BU102",
        ", ".join([*ROUTED, *SHARED]),
    ),
    deepseek(
        "index-drift",
        "The index names the wrong shard for an expert",
        13,
        "huggingface_hub#4725",
        index_drift,
        "BU216",
        "model.layers.1.mlp.experts.6.down_proj.weight",
    ),
    deepseek(
        "no-rule",
        "The table omits the shared expert",
        14,
        "vllm#15697",
        no_rule,
        "BU103",
        ", ".join(SHARED),
        convert=without_shared,
    ),
)
