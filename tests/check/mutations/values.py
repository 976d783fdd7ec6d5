"""Wrong values in the file itself: names, shapes and dtypes fit, and every tool computes the same from them.

Only a second source reveals them: activations that were saved from the original model (`verify --save`), with which the
converted one is compared (`verify --against`).
"""

from __future__ import annotations

import numpy as np

from tests.check.mutations.mutation import Mutation, Trial


def square_in_file(trial: Trial) -> None:
    trial.change("model.layers.1.self_attn.o_proj.weight", np.transpose)


def gate_up_in_file(trial: Trial) -> None:
    gate, up = (f"model.layers.2.mlp.{x}_proj.weight" for x in ("gate", "up"))
    trial.tensors[gate], trial.tensors[up] = trial.tensors[up], trial.tensors[gate]


def halves_of_heads(trial: Trial) -> None:
    """k of one layer with the channels of each head in pairs, as Meta's files have them."""

    def new(array: np.ndarray) -> np.ndarray:
        out, m = array.shape
        return array.reshape(-1, 2, 4, m).swapaxes(1, 2).reshape(out, m)

    trial.change("model.layers.1.self_attn.k_proj.weight", new)


def norm_less_one(trial: Trial) -> None:
    trial.change("model.layers.1.post_attention_layernorm.weight", lambda array: array - 1)


def other_revision(trial: Trial) -> None:
    """One shard is of a later training step."""
    trial.shards = 3
    for name in list(trial.tensors)[1 :: trial.shards]:
        if ".h.2." in name:
            trial.change(name, lambda array: array * np.float32(1.25))


def rope_theta(trial: Trial) -> None:
    trial.config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500000.0}


def epsilon(trial: Trial) -> None:
    trial.config["rms_norm_eps"] = 1e-2


def _file(key: str, title: str, pain: int, seen: str, spoil, names: str, base: str = "llama") -> Mutation:
    return Mutation(
        key=key, title=title, pain=pain, seen=seen, base=base, spoil=spoil, code="BU701", names=names, phase="against"
    )


VALUES = (
    _file(
        "square-in-file",
        "A square matrix is transposed in the file, in one layer",
        2,
        "transformers#47031",
        square_in_file,
        "model.layers.1.self_attn.o_proj",
    ),
    _file(
        "gate-up-in-file",
        "gate and up are exchanged in the file, in one layer",
        2,
        "vllm#53114",
        gate_up_in_file,
        "model.layers.2.mlp.gate_proj",
    ),
    _file(
        "rope-in-file",
        "k is stored for RoPE on adjacent pairs, in one layer",
        2,
        "llama.cpp#3364, llama.cpp#22611",
        halves_of_heads,
        "model.layers.1.self_attn.k_proj",
    ),
    _file(
        "norm-in-file",
        "A norm's weight is 1 too small in the file, in one layer",
        10,
        "transformers#45358",
        norm_less_one,
        "model.layers.1.post_attention_layernorm",
    ),
    _file(
        "other-revision",
        "One shard is of another revision",
        13,
        "huggingface_hub#4725",
        other_revision,
        "transformer.h.2.ln_1",
        base="gpt2",
    ),
    _file(
        "rope-theta",
        "The config has another `rope_theta`",
        2,
        "transformers#31788",
        rope_theta,
        "model.layers.0.self_attn",
    ),
    _file(
        "epsilon",
        "The config has another `rms_norm_eps`",
        12,
        "transformers#38489",
        epsilon,
        "model.layers.0.input_layernorm",
    ),
)
