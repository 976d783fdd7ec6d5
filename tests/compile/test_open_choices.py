"""Experts whose scores rounding cannot tell apart: a sound program agrees, and a planted fault is not excused."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig

from bringup.compile.cache.store import default_store
from bringup.compile.parity.parity import Parity
from bringup.compile.verify.command import parity_of
from tests.compile.planted import compiled, job
from tests.models import parity

TARGETS = ("torch", pytest.param("cpu", marks=pytest.mark.slow))
CONFIG = MixtralConfig(
    vocab_size=131, hidden_size=48, intermediate_size=64, num_attention_heads=6, num_key_value_heads=6,
    num_hidden_layers=2, max_position_embeddings=256, num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
)  # fmt: skip


def verified(folder: Path, target: str, planted: dict[str, tuple[str, float]]) -> Parity:
    """A program whose matrices ending in a key are the product of another and a factor, against the sound model.

    Faults are in the weights: all programs of a target have the same code, which is compiled once.
    Experts 1 and 3 have rows in the router that differ in one number by a tenth.
    """
    sound = parity.save_checkpoint(CONFIG, folder / "sound", "bfloat16")
    tensors = load_file(sound / "model.safetensors")
    for name, values in tensors.items():
        if name.endswith("gate.weight"):
            values[3] = values[1]
            values[3, 0] *= 1.1
    save_file(tensors, sound / "model.safetensors", {"format": "pt"})
    wrong = parity.save_checkpoint(CONFIG, folder / "wrong", "bfloat16")
    changed = dict(tensors)
    for end, (source, factor) in planted.items():
        changed[f"model.layers.{end}"] = tensors[f"model.layers.{source}"] * factor
    save_file(
        {name: values.contiguous() for name, values in changed.items()}, wrong / "model.safetensors", {"format": "pt"}
    )
    session = compiled(job(wrong), folder / "b", target=target, context=64, buckets=(16, 32), cache=default_store())
    return parity_of(session, job(sound))


def place(layer: int, expert: int) -> str:
    return f"{layer}.block_sparse_moe.experts.{expert}.w2.weight"


FAULTS = {
    "scaled-late": {place(1, 3): (place(1, 3), 3.0)},
    # One row alone takes this expert, and its choice is open: it was excused.
    "scaled-early": {place(0, 0): (place(0, 0), 3.0)},
    "swapped": {place(1, 3): (place(1, 1), 1.0), place(1, 1): (place(1, 3), 1.0)},
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["torch", "cpu"])
def test_a_sound_program_agrees(target: str, tmp_path: Path) -> None:
    found = verified(tmp_path, target, {})
    assert found.ok, (found.rows, found.findings)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_far_off_row_is_not_excused_by_an_open_choice(name: str, target: str, tmp_path: Path) -> None:
    found = verified(tmp_path, target, FAULTS[name])
    assert found.differences[0].ok  # the graph itself is right
    assert not found.ok, found.rows
    assert max(difference.excess for difference in found.differences) > 1
