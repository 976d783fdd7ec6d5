"""Small checkpoints of families that are not in the registry, written by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

from bringup.adapters import open_checkpoint
from bringup.compile.draft.draft import Draft, draft, write_draft
from bringup.graphs.registry import FAMILIES
from tests.models import parity

SIZES: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": 256, "eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0,
}  # fmt: skip
SCALES = {"attention_multiplier": 0.2, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22}
WINDOWS = {"sliding_window": 32, "num_hidden_layers": 4}  # with both kinds of layers, and with and without rope
MORE: dict[str, dict[str, Any]] = {
    "granite": SCALES,
    "granitemoe": {**SCALES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "cohere2": WINDOWS, "exaone4": WINDOWS, "olmo3": WINDOWS, "smollm3": {**WINDOWS, "use_sliding_window": True},
    "gemma": {"head_dim": 8}, "glm": {"head_dim": 8}, "glm4": {"head_dim": 8}, "hunyuan_v1_dense": {"head_dim": 8},
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "olmo": {"num_key_value_heads": 6},
    "phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "helium": {"head_dim": 8},
    "seed_oss": {"head_dim": 8},
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 48},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 6},
}  # fmt: skip


def save(kind: str, folder: Path) -> Path:
    """A checkpoint of the model type `kind`, which no family of ours serves."""
    assert not any(family.name == kind for family in FAMILIES)
    return parity.save_checkpoint(CONFIG_MAPPING[kind](**SIZES | MORE.get(kind, {})), folder)


def save_with(kind: str, keys: dict[str, Any], folder: Path) -> Path:
    """A checkpoint of any model type, with these keys of its config."""
    return parity.save_checkpoint(CONFIG_MAPPING[kind](**SIZES | keys), folder)


def drafted(source: Path, folder: Path) -> tuple[Draft, Path]:
    """The draft of a checkpoint, and its model file, written to a folder."""
    found = draft(open_checkpoint(source, headers_only=True))
    write_draft(found, folder)
    return found, folder / f"{found.name}.py"


def drafted_with(kind: str, keys: dict[str, Any], folder: Path) -> tuple[Draft, Path, Path]:
    """The draft of such a checkpoint, its model file, and the checkpoint."""
    source = save_with(kind, keys, folder / "checkpoint")
    return *drafted(source, folder / "draft"), source


def assert_complete(found: Draft) -> None:
    """Every tensor has a rule, and questions are about GGUF files and other values of keys only."""
    texts = [each.text for each in found.questions if not each.text.startswith("GGUF")]
    assert [text for text in texts if not text.endswith("write what they change")] == []
    assert found.open == 0
