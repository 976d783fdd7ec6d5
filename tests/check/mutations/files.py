"""Folders whose files contradict each other, and index tables that do."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np

from tests.check.mutations.mutation import Mutation, Trial

INDEX = "model.safetensors.index.json"


def _index(folder: Path) -> dict:
    return json.loads((folder / INDEX).read_text("utf-8"))


def index_drift(trial: Trial) -> None:
    """The index names another shard for one tensor than the one that holds it."""
    trial.shards = 3

    def change(folder: Path) -> None:
        index = _index(folder)
        owners = index["weight_map"]
        name = "model.layers.1.mlp.gate_proj.weight"
        owners[name] = next(shard for shard in owners.values() if shard != owners[name])
        (folder / INDEX).write_text(json.dumps(index), "utf-8")

    trial.on_disk(change)


def shard_left_out(trial: Trial) -> None:
    """A shard was lost and the index written anew over what was left."""
    trial.shards = 3

    def change(folder: Path) -> None:
        index = _index(folder)
        lost = "model-00002-of-00003.safetensors"
        (folder / lost).unlink()
        index["weight_map"] = {name: shard for name, shard in index["weight_map"].items() if shard != lost}
        (folder / INDEX).write_text(json.dumps(index), "utf-8")

    trial.on_disk(change)


def pointer(trial: Trial) -> None:
    """One shard is the text that git keeps in its place until `git lfs pull`."""
    trial.shards = 3

    def change(folder: Path) -> None:
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4983508568\n"
        (folder / "model-00002-of-00003.safetensors").write_text(text, "utf-8")

    trial.on_disk(change)


def twice(trial: Trial) -> None:
    """Meta's file beside the shards, and no index: every tensor would be read twice."""
    trial.shards = 3

    def change(folder: Path) -> None:
        (folder / INDEX).unlink()
        shard = folder / "model-00001-of-00003.safetensors"
        (folder / "consolidated.safetensors").write_bytes(shard.read_bytes())

    trial.on_disk(change)


def rounded(trial: Trial) -> None:
    """A rule that rounds: what is saved back could not be what was loaded."""
    trial.edit_adapter("import S\n", "import S\nfrom bringup.adapters.algebra.values import cast\n")
    source = 'S("layers.{L}.mlp.{x}_proj.{p}"'
    trial.edit_adapter(f"{source})", f'cast({source}, "out in"), "bfloat16")')


def rounded_in_tensors(trial: Trial) -> None:
    for name in [name for name in trial.tensors if ".mlp." in name]:
        trial.change(name, lambda array: array.astype(ml_dtypes.bfloat16).astype(np.float32))


def left_out(trial: Trial) -> None:
    """What a conversion script writes that forgets a matrix."""
    trial.draft.tensors = {name: array for name, array in trial.tensors.items() if "o_proj" not in name}


def as_it_is(trial: Trial) -> None:
    """In a script the later of two assignments wins."""


def no_rule(trial: Trial) -> None:
    trial.edit_adapter("q|k|v|o", "q|k|v")


def two_rules(trial: Trial) -> None:
    """Two people each added the biases."""
    trial.edit_adapter(
        "    head, embedding",
        '    gpt2["transformer.h.{L}.mlp.{m}.bias"] = S("h.{L}.mlp.{m}.bias")\n    head, embedding',
    )


FILES = (
    Mutation(
        key="index-drift",
        title="The index names the wrong shard",
        pain=13,
        seen="huggingface_hub#4725",
        base="llama",
        spoil=index_drift,
        code="BU216",
        names="model.layers.1.mlp.gate_proj.weight",
    ),
    Mutation(
        key="shard-left-out",
        title="A shard is missing, and so are its entries in the index",
        pain=13,
        seen="vllm#57108",
        base="llama",
        spoil=shard_left_out,
        code="BU215",
        names="model-00002-of-00003.safetensors",
    ),
    Mutation(
        key="pointer",
        title="A shard is a Git LFS pointer",
        pain=13,
        seen="vllm#57975",
        base="gpt2",
        spoil=pointer,
        code="BU206",
        names="model-00002-of-00003.safetensors",
    ),
    Mutation(
        key="twice",
        title="The same tensors are in two files, and there is no index",
        pain=9,
        seen="cosmos-rl#427, VeOmni#123",
        base="gpt2",
        spoil=twice,
        code="BU217",
        names="transformer.h.0.attn.c_attn.bias",
    ),
    Mutation(
        key="rounded",
        title="A rule rounds, and the model is saved back",
        pain=10,
        seen="transformers#48075, ms-swift#9877",
        base="llama",
        spoil=rounded,
        convert=rounded_in_tensors,
        code="BU117",
        names="model.layers.0.mlp.gate_proj.weight",
        phase="export",
    ),
    Mutation(
        key="no-rule",
        title="The table omits a matrix",
        pain=14,
        seen="vllm#37084",
        base="llama",
        spoil=no_rule,
        convert=left_out,
        code="BU103",
        names="model.layers.{0..2}.self_attn.o_proj.weight",
    ),
    Mutation(
        key="two-rules",
        title="Two rules claim the same biases",
        pain=14,
        seen="vllm#15697",
        base="gpt2",
        spoil=two_rules,
        convert=as_it_is,
        code="BU110",
        names="transformer.h.{0..2}.mlp.c_fc.bias, transformer.h.{0..2}.mlp.c_proj.bias",
    ),
)
