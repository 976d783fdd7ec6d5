"""Drafts whose config.json names the architecture of their main model: their tensors determine the family."""

from __future__ import annotations

from collections.abc import Container, Iterable

from bringup.graphs.family import Family
from bringup.graphs.registry import FAMILIES

# Tensors that only a draft has, without the prefix that some files have. The EAGLE repository's heads for Llama state
# `LlamaForCausalLM`.
TENSORS = {"midlayer.hidden_norm.weight": "eagle3", "layers.0.hidden_norm.weight": "eagle3"}
PREFIXES = ("", "model.")


def draft_by_tensors(architectures: Iterable[str], tensors: Container[str]) -> Family | None:
    """The family of a draft for a main model of these architectures that has one of TENSORS; None for other files."""
    names = {name for tensor, name in TENSORS.items() for prefix in PREFIXES if prefix + tensor in tensors}
    found = (family for family in FAMILIES if family.name in names)
    return next((family for family in found if {*architectures} & {*family.load("config").drafts_for}), None)
