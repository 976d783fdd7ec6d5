"""Tensors that are missing, renamed, prefixed, renumbered, or extra."""

from __future__ import annotations

import re

import numpy as np

from tests.check.mutations.mutation import Mutation, Trial

# Meta's own names of the same tensors (llama/model.py of github.com/meta-llama/llama).
META = {
    "model.layers": "layers",
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def lost(trial: Trial) -> None:
    del trial.tensors["transformer.h.1.ln_2.weight"]


def lost_layer(trial: Trial) -> None:
    trial.draft.tensors = {name: array for name, array in trial.tensors.items() if ".h.1." not in name}
    trial.shards = 3


def module_prefix(trial: Trial) -> None:
    trial.rename(lambda name: f"module.{name}")


def doubled_prefix(trial: Trial) -> None:
    trial.rename(lambda name: name.replace("model.", "model.model.", 1))


def compiled_layer(trial: Trial) -> None:
    trial.rename(lambda name: name.replace("layers.1.", "layers.1._orig_mod."))


def renamed_everywhere(trial: Trial) -> None:
    trial.rename(lambda name: name.replace("mlp.down_proj", "mlp.w2"))
    trial.shards = 3


def three_renamed(trial: Trial) -> None:
    trial.rename(lambda name: name.replace("h.1.mlp.c_proj", "h.1.mlp.c_prj").replace("ln_f", "final_norm"))
    trial.shards = 3


def one_based(trial: Trial) -> None:
    trial.rename(lambda name: re.sub(r"(?<=\.h\.)\d+", lambda number: str(int(number[0]) + 1), name))


def metas_names(trial: Trial) -> None:
    def new(name: str) -> str:
        for ours, theirs in META.items():
            name = name.replace(ours, theirs)
        return name

    trial.rename(new)


def fused_qkv(trial: Trial) -> None:
    for layer in range(trial.draft.depth):
        at = f"model.layers.{layer}.self_attn."
        parts = [trial.tensors.pop(f"{at}{x}_proj.weight") for x in "qkv"]
        trial.tensors[f"{at}qkv_proj.weight"] = np.concatenate(parts)


def mtp_layer(trial: Trial) -> None:
    last = trial.draft.depth - 1
    twin = {n.replace(f".{last}.", f".{last + 1}."): a for n, a in trial.tensors.items() if f"layers.{last}." in n}
    trial.tensors.update(twin)
    trial.tensors[f"model.layers.{last + 1}.eh_proj.weight"] = np.ones((32, 64), np.float32)
    trial.tensors[f"model.layers.{last + 1}.enorm.weight"] = np.ones(32, np.float32)


def lora_in_the_file(trial: Trial) -> None:
    """The adapter's tensors in the model's file, under the names that PEFT gives them."""
    for layer in range(trial.draft.depth):
        for x in "qv":
            name = f"model.layers.{layer}.self_attn.{x}_proj"
            out, m = trial.tensors[f"{name}.weight"].shape
            trial.tensors[f"base_model.model.{name}.lora_A.weight"] = np.ones((4, m), np.float32)
            trial.tensors[f"base_model.model.{name}.lora_B.weight"] = np.ones((out, 4), np.float32)


def lora_unmerged(trial: Trial) -> None:
    """`state_dict()` of a PEFT model whose adapter was never merged."""
    lora_in_the_file(trial)

    def new(name: str) -> str:
        if "lora_" in name:
            return name.replace(".weight", ".default.weight")
        return "base_model.model." + re.sub(r"([qv]_proj)\.weight", r"\1.base_layer.weight", name)

    trial.rename(new)


ADAPTED = "model.layers.{0..2}.self_attn.q_proj.weight, model.layers.{0..2}.self_attn.v_proj.weight"

NAMES = (
    Mutation(
        key="lost-tensor",
        title="One tensor is missing",
        pain=1,
        seen="vllm#34930",
        base="gpt2",
        spoil=lost,
        code="BU101",
        names="transformer.h.1.ln_2.weight",
    ),
    Mutation(
        key="lost-layer",
        title="The middle layer is missing",
        pain=1,
        seen="vllm#57108",
        base="gpt2",
        spoil=lost_layer,
        code="BU101",
        names="transformer.h.1",
    ),
    Mutation(
        key="module-prefix",
        title="Every name begins with `module.`",
        pain=1,
        seen="transformers#47408",
        base="llama",
        spoil=module_prefix,
        code="BU101",
        names="model, lm_head.weight",
    ),
    Mutation(
        key="doubled-prefix",
        title="Names begin with `model.model.`",
        pain=1,
        seen="transformers#47408",
        base="llama",
        spoil=doubled_prefix,
        code="BU101",
        names="model",
    ),
    Mutation(
        key="compiled-layer",
        title="One layer was saved from `torch.compile`: `_orig_mod.` in its names",
        pain=10,
        seen="transformers#46650",
        base="llama",
        spoil=compiled_layer,
        code="BU101",
        names="model.layers.1",
    ),
    Mutation(
        key="renamed-everywhere",
        title="A matrix has another name in every layer and shard",
        pain=6,
        seen="vllm#10168, vllm#40358",
        base="llama",
        spoil=renamed_everywhere,
        code="BU101",
        names="model.layers.{0..2}.mlp.down_proj.weight",
    ),
    Mutation(
        key="one-based",
        title="Layers are numbered from 1",
        pain=6,
        seen="llama.cpp#9211",
        base="gpt2",
        spoil=one_based,
        code="BU101",
        names="transformer.h.0",
    ),
    Mutation(
        key="metas-names",
        title="The tensors have Meta's names",
        pain=12,
        seen="vllm#54547, sglang#18189",
        base="llama",
        spoil=metas_names,
        code="BU101",
        names="model.embed_tokens.weight, model.layers, lm_head.weight",
    ),
    Mutation(
        key="fused-qkv",
        title="q, k and v are one tensor",
        pain=14,
        seen="sglang#24703",
        base="llama",
        spoil=fused_qkv,
        code="BU101",
        names=", ".join(f"model.layers.{{0..2}}.self_attn.{x}_proj.weight" for x in "qkv"),
    ),
    Mutation(
        key="mtp-layer",
        title="A layer for multi-token prediction follows the last",
        pain=7,
        seen="vllm#16450, transformers#35688",
        base="llama",
        spoil=mtp_layer,
        code="BU105",
        names="model.layers.3",
    ),
    Mutation(
        key="lora-beside",
        title="A LoRA's tensors are in the file of the weights",
        pain=4,
        seen="vllm#34186, sglang#40835",
        base="llama",
        spoil=lora_in_the_file,
        code="BU132",
        names=ADAPTED,
    ),
    Mutation(
        key="lora-unmerged",
        title="A PEFT model was saved before its LoRA was merged",
        pain=4,
        seen="vllm#48019, surogate#173",
        base="llama",
        spoil=lora_unmerged,
        code="BU132",
        names=ADAPTED,
    ),
)
