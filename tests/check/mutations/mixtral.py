"""Mixtral: one tensor for each expert and matrix; w1 is the gate, w3 up, w2 down."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.check.mutations.mutation import Mutation, Trial
from tests.check.mutations.names import lora_in_the_file

MOE = "block_sparse_moe"


def _expert(layer: int, expert: int, matrix: str) -> str:
    return f"model.layers.{layer}.{MOE}.experts.{expert}.{matrix}.weight"


def lost_matrix(trial: Trial) -> None:
    del trial.tensors[_expert(1, 2, "w3")]


def lost_expert(trial: Trial) -> None:
    """Where transformers 5.23 stacks what is left, and is silent."""
    for matrix in ("w1", "w2", "w3"):
        del trial.tensors[_expert(0, 3, matrix)]


def gate_and_up(trial: Trial) -> None:
    trial.edit_adapter('("gate", "w1", "f m"), ("up", "w3", "f m")', '("gate", "w3", "f m"), ("up", "w1", "f m")')


def gate_and_up_in_tensors(trial: Trial) -> None:
    def new(name: str) -> str:
        swapped = {"w1": "w3", "w3": "w1"}
        return next((name.replace(f".{w}.", f".{v}.") for w, v in swapped.items() if f".{w}." in name), name)

    trial.rename(new)


def transposed_expert(trial: Trial) -> None:
    trial.change(_expert(1, 3, "w2"), np.transpose)


def experts_exchanged(trial: Trial) -> None:
    """Two experts in each other's place; the gate still means the old ones."""
    for matrix in ("w1", "w2", "w3"):
        one, other = _expert(1, 0, matrix), _expert(1, 1, matrix)
        trial.tensors[one], trial.tensors[other] = trial.tensors[other], trial.tensors[one]


def integers(trial: Trial) -> None:
    """A quantised expert whose scale was left behind."""
    trial.change(_expert(0, 1, "w1"), lambda array: (array * 127).astype(np.int8))


def other_names(trial: Trial) -> None:
    trial.rename(lambda name: name.replace(".w2.", ".down_proj."))


def draft_layer(trial: Trial) -> None:
    """An EAGLE head's layer, saved into the file of the model that it drafts for."""
    for name in [name for name in trial.tensors if ".layers.1.self_attn." in name]:
        trial.tensors[name.replace(".layers.1.", ".layers.2.")] = trial.tensors[name]
    trial.tensors["model.layers.2.fc.weight"] = np.ones((32, 64), np.float32)


def twice(trial: Trial) -> None:
    """Mistral's own file beside the shards, as its first releases had it, and no index."""
    trial.shards = 3

    def change(folder: Path) -> None:
        (folder / "model.safetensors.index.json").unlink()
        (folder / "consolidated.00.safetensors").write_bytes((folder / "model-00001-of-00003.safetensors").read_bytes())

    trial.on_disk(change)


def fewer_a_token(trial: Trial) -> None:
    trial.config["num_experts_per_tok"] = 1


def shard_left_out(trial: Trial) -> None:
    trial.shards = 3
    trial.on_disk(lambda folder: (folder / "model-00003-of-00003.safetensors").unlink())


def _mixtral(key: str, title: str, pain: int, seen: str, spoil, code: str, names: str, **more) -> Mutation:
    return Mutation(
        key=f"mixtral-{key}", title=title, pain=pain, seen=seen, base="mixtral", spoil=spoil, code=code, names=names,
        **more,
    )  # fmt: skip


MIXTRAL = (
    _mixtral(
        "lost-matrix",
        "One matrix of one expert is missing",
        1,
        "vllm#57108",
        lost_matrix,
        "BU101",
        "model.layers.1.mlp.experts.up_proj",
    ),
    _mixtral(
        "lost-expert",
        "The last expert of a layer is missing",
        1,
        "transformers#47408",
        lost_expert,
        "BU101",
        "model.layers.0.mlp.experts",
    ),
    _mixtral(
        "gate-and-up",
        "A rule reads w3 for the gate",
        2,
        "sglang#24703",
        gate_and_up,
        "BU701",
        "model.layers.0.mlp.experts",
        phase="verify",
        convert=gate_and_up_in_tensors,
    ),
    _mixtral(
        "transposed-expert",
        "One expert's matrix is transposed",
        2,
        "transformers#47031",
        transposed_expert,
        "BU102",
        "model.layers.1.mlp.experts.down_proj",
    ),
    _mixtral(
        "experts-exchanged",
        "Two experts are exchanged in the file",
        2,
        "vllm#53114",
        experts_exchanged,
        "BU701",
        "model.layers.1.mlp.experts",
        phase="against",
    ),
    _mixtral(
        "integers",
        "One expert's matrix is int8, and its scale is missing",
        3,
        "vllm#54770",
        integers,
        "BU108",
        "model.layers.0.mlp.experts.gate_proj",
    ),
    _mixtral(
        "lora-beside",
        "A LoRA's tensors are in the file of Mixtral's weights",
        4,
        "vllm#55193",
        lora_in_the_file,
        "BU132",
        "model.layers.{0..1}.self_attn.q_proj.weight, model.layers.{0..1}.self_attn.v_proj.weight",
    ),
    _mixtral(
        "other-names",
        "One matrix of every expert has another family's name",
        6,
        "vllm#9595",
        other_names,
        "BU101",
        "model.layers.{0..1}.mlp.experts.down_proj",
    ),
    _mixtral(
        "draft-layer",
        "A draft's layer follows the last",
        7,
        "vllm#21874",
        draft_layer,
        "BU105",
        "model.layers.2",
    ),
    _mixtral(
        "twice",
        "The publisher's own file is next to the shards",
        9,
        "vllm#3185",
        twice,
        "BU217",
        "lm_head.weight",
    ),
    _mixtral(
        "fewer-a-token",
        "The config routes a token to one expert instead of two",
        12,
        "vllm#14635",
        fewer_a_token,
        "BU701",
        "model.layers.0.mlp",
        phase="against",
    ),
    _mixtral(
        "lost-shard",
        "A shard that the index names is missing",
        13,
        "vllm#57108",
        shard_left_out,
        "BU215",
        "model-00003-of-00003.safetensors",
    ),
)
