"""BLOOM: q, k and v of each head are adjacent; ALiBi, a norm after the embedding, a tied head."""

from __future__ import annotations

import re

import numpy as np

from tests.check.mutations.mutation import Mutation, Trial

HEADS = 3
FUSED = "self_attention.query_key_value"


def embedding_norm(trial: Trial) -> None:
    trial.draft.tensors = {n: a for n, a in trial.tensors.items() if "word_embeddings_layernorm" not in n}


def _each(trial: Trial, inner: str, new) -> None:
    for layer in range(trial.draft.depth):
        trial.change(trial.draft.name(inner, layer), new)


def thirds(trial: Trial) -> None:
    """As GPT-2 has them: all of q, then all of k, then all of v."""
    for axes in ("(h t d) m -> t (h d) m", "(h t d) -> t (h d)"):
        trial.edit_adapter(f'mv("{axes}"', f'mv("{axes.replace("(h t d)", "(t h d)", 1)}"')


def heads_apart(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        return array.reshape(3, HEADS, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)

    for name in ("weight", "bias"):
        _each(trial, f"{FUSED}.{name}", new)


def thirds_in_file(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        return array.reshape(HEADS, 3, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)

    for name in ("weight", "bias"):
        trial.change(f"transformer.h.1.{FUSED}.{name}", new)


def transposed(trial: Trial) -> None:
    _each(trial, "mlp.dense_h_to_4h.weight", np.transpose)


def other_heads(trial: Trial) -> None:
    """The fused matrix is cut otherwise, and every shape fits."""
    trial.config["n_head"] = 6


def untied(trial: Trial) -> None:
    trial.config["tie_word_embeddings"] = False


def padded(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros((16, array.shape[1]), array.dtype)])

    trial.change("transformer.word_embeddings.weight", new)


def one_based(trial: Trial) -> None:
    trial.rename(lambda name: re.sub(r"(?<=\.h\.)\d+", lambda number: str(int(number[0]) + 1), name))


def no_rule(trial: Trial) -> None:
    rule = 'bloom[f"transformer.{attention}dense.{{p:weight|bias}}"] = S(attention + "dense.{p}")'
    trial.edit_adapter(f"    {rule}\n", "")


def left_out(trial: Trial) -> None:
    trial.draft.tensors = {n: a for n, a in trial.tensors.items() if "self_attention.dense" not in n}


def ranks(trial: Trial) -> None:
    trial.options += ["--tp", "2"]


def _bloom(key: str, title: str, pain: int, seen: str, spoil, code: str, names: str, **more) -> Mutation:
    return Mutation(
        key=f"bloom-{key}", title=title, pain=pain, seen=seen, base="bloom", spoil=spoil, code=code, names=names, **more
    )


BLOOM = (
    _bloom(
        "embedding-norm",
        "The norm of the embeddings is missing",
        1,
        "transformers#47408",
        embedding_norm,
        "BU101",
        "transformer.word_embeddings_layernorm",
    ),
    _bloom(
        "thirds",
        "A rule cuts the fused matrix into thirds, as if it were GPT-2's",
        2,
        "vllm#53114",
        thirds,
        "BU701",
        "transformer.h.0.self_attention",
        phase="verify",
        convert=heads_apart,
    ),
    _bloom(
        "thirds-in-file",
        "The fused matrix is stored in thirds, in one layer",
        2,
        "Megatron-Bridge#1818",
        thirds_in_file,
        "BU701",
        "transformer.h.1.self_attention",
        phase="against",
    ),
    _bloom(
        "transposed",
        "A matrix of the MLP is transposed in every layer",
        2,
        "unsloth-zoo#849",
        transposed,
        "BU102",
        "transformer.h.{0..2}.mlp.dense_h_to_4h.weight",
    ),
    _bloom(
        "other-heads",
        "The config has twice the heads",
        12,
        "vllm#12634",
        other_heads,
        "BU701",
        "transformer.h.0.self_attention",
        phase="against",
    ),
    _bloom(
        "untied",
        "The config unties BLOOM's head, and the head is missing",
        5,
        "transformers#42612",
        untied,
        "BU109",
        "lm_head.weight",
    ),
    _bloom(
        "padded",
        "The table of the embeddings is padded",
        12,
        "vllm-omni#5225",
        padded,
        "BU102",
        "transformer.word_embeddings.weight, lm_head.weight",
    ),
    _bloom(
        "one-based",
        "BLOOM's layers are numbered from 1",
        6,
        "llama.cpp#7924",
        one_based,
        "BU101",
        "transformer.h.0",
    ),
    _bloom(
        "no-rule",
        "The table omits attention's last matrix",
        14,
        "vllm#37084",
        no_rule,
        "BU103",
        "transformer.h.{0..2}.self_attention.dense.weight, transformer.h.{0..2}.self_attention.dense.bias",
        convert=left_out,
    ),
    _bloom(
        "ranks",
        "Three heads are divided among two ranks",
        11,
        "vllm#414",
        ranks,
        "BU130",
        "transformer.h.0.self_attention.q_proj.weight",
    ),
)
