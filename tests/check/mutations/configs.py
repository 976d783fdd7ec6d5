"""Configs that do not belong to the weights, ties, and ranks that do not divide."""

from __future__ import annotations

import numpy as np

from tests.check.mutations.mutation import Mutation, Trial


def untied(trial: Trial) -> None:
    trial.config["tie_word_embeddings"] = False


def tied_and_different(trial: Trial) -> None:
    trial.config["tie_word_embeddings"] = True


def key_heads(trial: Trial) -> None:
    """Grouped-query attention is lost from the config."""
    trial.config["num_key_value_heads"] = trial.config["num_attention_heads"]


def head_dim(trial: Trial) -> None:
    trial.config["head_dim"] = 16


def deeper(trial: Trial) -> None:
    trial.config["n_layer"] = 5


def shallower(trial: Trial) -> None:
    trial.config["num_hidden_layers"] = 2


def padded(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros((14, array.shape[1]), array.dtype)])

    trial.change("transformer.wte.weight", new)


def rope_type(trial: Trial) -> None:
    trial.config["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 10000.0, "factor": 2.0}


def ranks(trial: Trial) -> None:
    trial.options += ["--tp", "2"]


CONFIGS = (
    Mutation(
        key="untied",
        title="The config unties the head, and the head is missing",
        pain=5,
        seen="vllm#53019",
        base="gpt2",
        spoil=untied,
        code="BU109",
        names="lm_head.weight",
    ),
    Mutation(
        key="tied-and-different",
        title="The config ties the head, and the file has another one",
        pain=5,
        seen="Automodel#2511, transformers#43429",
        base="llama",
        spoil=tied_and_different,
        code="BU114",
        names="lm_head.weight",
        phase="compile",
        warns=True,
    ),
    Mutation(
        key="key-heads",
        title="The config has as many key heads as query heads",
        pain=11,
        seen="vllm#2652",
        base="llama",
        spoil=key_heads,
        code="BU102",
        names="model.layers.{0..2}.self_attn.k_proj.weight, model.layers.{0..2}.self_attn.v_proj.weight",
    ),
    Mutation(
        key="ranks",
        title="Three key heads are divided among two ranks",
        pain=11,
        seen="transformers#48307, vllm#12256",
        base="mistral",
        spoil=ranks,
        code="BU130",
        names="model.layers.0.self_attn.k_proj.weight",
        reads=("num_key_value_heads",),
    ),
    Mutation(
        key="head-dim",
        title="The config has another `head_dim`",
        pain=12,
        seen="vllm#12634",
        base="llama",
        spoil=head_dim,
        code="BU102",
        names=", ".join(f"model.layers.{{0..2}}.self_attn.{x}_proj.weight" for x in "qokv"),
    ),
    Mutation(
        key="deeper",
        title="The config has two layers more than the weights",
        pain=1,
        seen="speculators#1131",
        base="gpt2",
        spoil=deeper,
        code="BU101",
        names="transformer.h.{3..4}",
    ),
    Mutation(
        key="shallower",
        title="The config has one layer fewer than the weights",
        pain=7,
        seen="vllm#21874",
        base="llama",
        spoil=shallower,
        code="BU105",
        names="model.layers.2",
    ),
    Mutation(
        key="padded",
        title="The vocabulary is padded",
        pain=12,
        seen="vllm-omni#5225",
        base="gpt2",
        spoil=padded,
        code="BU102",
        names="transformer.wte.weight, lm_head.weight",
    ),
    Mutation(
        key="rope-type",
        title="The rope type is unknown",
        pain=14,
        seen="vllm#48972",
        base="llama",
        spoil=rope_type,
        code="BU122",
        names="rope_type",
    ),
)
