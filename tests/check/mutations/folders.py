"""Folders whose files contradict each other, and other files next to a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.check.mutations.mutation import Mutation, Trial

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
GATE = "model.layers.1.mlp.gate_proj.weight"


def _sharded(trial: Trial, change: Callable[[Path, dict[str, str]], None]) -> None:
    """The folder in three files; `change` is given the index's owners, which it may change."""
    trial.shards = 3

    def rewrite(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        change(folder, index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index), "utf-8")

    trial.on_disk(rewrite)


def two_sets(trial: Trial) -> None:
    """The fine-tuned weights were saved in one file over a folder that has the base model's shards."""

    def change(folder: Path, owners: dict[str, str]) -> None:
        parts = [load_file(folder / name) for name in sorted(set(owners.values()))]
        save_file({k: v * 2 for part in parts for k, v in part.items()}, folder / SINGLE, metadata={"format": "pt"})

    _sharded(trial, change)


def _copied(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Trial], None]:
    """A tensor is in a second shard as well, changed."""

    def spoil(trial: Trial) -> None:
        def rewrite(folder: Path, owners: dict[str, str]) -> None:
            other = next(name for name in sorted(set(owners.values())) if name != owners[GATE])
            tensors = load_file(folder / other) | {GATE: change(load_file(folder / owners[GATE])[GATE])}
            save_file(tensors, folder / other, metadata={"format": "pt"})

        _sharded(trial, rewrite)

    return spoil


def forgotten(trial: Trial) -> None:
    _sharded(trial, lambda folder, owners: owners.pop(GATE))


def ghost(trial: Trial) -> None:
    """The index is that of a model with a bias more."""
    _sharded(trial, lambda folder, owners: owners.update({"lm_head.bias": owners["lm_head.weight"]}))


def in_no_file(trial: Trial) -> None:
    """One shard was written anew without a tensor; the index still names it."""

    def change(folder: Path, owners: dict[str, str]) -> None:
        tensors = load_file(folder / owners[GATE])
        del tensors[GATE]
        save_file(tensors, folder / owners[GATE], metadata={"format": "pt"})

    _sharded(trial, change)


def left_over(trial: Trial) -> None:
    """The index is that of a model with a file more, which was re-quantised into fewer."""
    _sharded(trial, lambda folder, owners: owners.update({"lm_head.extra": "model-extra.safetensors"}))


def of_other_shards(trial: Trial) -> None:
    """The weights were saved again in other files, and the old index was left."""

    def change(folder: Path, owners: dict[str, str]) -> None:
        for name in sorted(set(owners.values())):
            (folder / name).rename(folder / name.replace("model-", "weights-"))

    _sharded(trial, change)


def truncated(trial: Trial) -> None:
    """A download that stopped early."""

    def change(folder: Path, owners: dict[str, str]) -> None:
        file = folder / owners[GATE]
        file.write_bytes(file.read_bytes()[:-100])

    _sharded(trial, change)


def _adapter(file: str) -> Callable[[Trial], None]:
    """A LoRA that was trained on the model and saved into its folder."""

    def change(folder: Path) -> None:
        words = {"peft_type": "LORA", "target_modules": ["q_proj"], "r": 4}
        (folder / "adapter_config.json").write_text(json.dumps(words), "utf-8")
        at = "base_model.model.model.layers.0.self_attn.q_proj"
        lora = {
            f"{at}.lora_A.weight": np.ones((4, 32), np.float32),
            f"{at}.lora_B.weight": np.ones((32, 4), np.float32),
        }
        save_file(lora, folder / file)  # of the .bin only the name is looked at

    return lambda trial: trial.on_disk(change)


def _case(
    key: str, title: str, pain: int, seen: str, spoil: Callable[[Trial], None], code: str, names: str
) -> Mutation:
    return Mutation(key=key, title=title, pain=pain, seen=seen, base="llama", spoil=spoil, code=code, names=names)


TWICE, LOST = "vllm#54230", "huggingface_hub#4725"
CUT = "model-00002-of-00003.safetensors"
FOLDERS = (
    _case("two-sets", "One file is next to an index of others", 13, "mlx-vlm#1464", two_sets, "BU228", SINGLE),
    _case("copied", "A tensor is in two shards, with other values", 13, TWICE, _copied(lambda a: a * 2), "BU217", GATE),
    _case(
        "copied-cut", "A tensor is in two shards, with other shapes", 13, TWICE, _copied(lambda a: a[:5]), "BU217", GATE
    ),
    _case("ghost", "The index names a tensor that no file has", 13, LOST, ghost, "BU216", "lm_head.bias"),
    _case("in-no-file", "A shard has lost a tensor that the index names", 13, LOST, in_no_file, "BU216", GATE),
    _case("left-over", "The index names another file", 13, "CoSER#3", left_over, "BU215", "model-extra.safetensors"),
    _case("of-other-shards", "The index is that of other files", 13, "mlx-vlm#1827", of_other_shards, "BU215", CUT),
    _case("cut-shard", "The download of a shard stopped early", 13, "PersuGPT.github.io#2", truncated, "BU208", CUT),
    _case(
        "adapter-beside",
        "A LoRA of peft is in the model's folder",
        4,
        "transformers#43746",
        _adapter("adapter_model.safetensors"),
        "BU132",
        "adapter_model.safetensors",
    ),
    _case(
        "adapter-bin-beside",
        "A LoRA of peft is in the model's folder, as a torch file",
        4,
        "unsloth#1107",
        _adapter("adapter_model.bin"),
        "BU132",
        "adapter_model.bin",
    ),
    Mutation(
        key="forgotten",
        title="The index omits a tensor that a shard has",
        pain=13,
        seen="vmlx-swift#388",
        base="llama",
        spoil=forgotten,
        code="BU216",
        names=GATE,
        warns=True,
    ),
)
