# pyright: reportUnknownVariableType=false
"""How transformers loads the tensors of a checkpoint into its modules, from its `conversion_mapping.py`.

`WeightRenaming`s are the names of tensors in modules. `WeightConverter`s merge several tensors, or split one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

# Names of merged tensors, and of their parts, in transformers and in vLLM.
PARTS: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q", "k", "v"),
    "gate_up_proj": ("gate", "up"),
    "gate_and_up_proj": ("gate", "up"),
}
ROLES = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "gate_proj": "gate", "up_proj": "up",
    "down_proj": "down",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conversions:
    """`roles`: of tensors that are merged or renamed, by the last words of their names: the first of several is the
    gate, or the queries. `in_order`: the last words of tensors that are split in q, k and v, in this order.
    `in_modules`: the name of a tensor in the modules, before it is merged or split."""

    roles: Mapping[str, str]
    in_order: frozenset[str]
    in_modules: Callable[[str], str]


def conversions_of(model_type: str) -> Conversions | None:
    """The conversions of a model type; None if it has none, or without torch or transformers 5."""
    if find_spec("torch") is None:  # the table imports it
        return None
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
        from transformers.core_model_loading import WeightRenaming, rename_source_key
    except ImportError:  # before transformers 5
        return None
    if not (found := cast("list[Any]", get_checkpoint_conversion_mapping(model_type) or [])):
        return None
    renamings = [each for each in found if isinstance(each, WeightRenaming)]
    roles: dict[str, str] = {}
    in_order: set[str] = set()
    for each in found:
        sources, targets = _last_words(each.source_patterns), _last_words(each.target_patterns)
        if len(targets) == 1 and (parts := PARTS.get(targets[0])) and len(parts) == len(sources):
            roles |= dict(zip(sources, parts, strict=True))
        elif len(targets) == len(sources) == 1 and targets[0] in ROLES:
            roles[sources[0]] = ROLES[targets[0]]
        elif targets == ["q_proj", "k_proj", "v_proj"] and len(sources) == 1 and _splits_rows(each):
            in_order.add(sources[0])
    return Conversions(roles, frozenset(in_order), lambda name: rename_source_key(name, renamings, [])[0])


def _splits_rows(conversion: Any) -> bool:
    """Whether a conversion cuts the rows of one tensor, and does nothing else."""
    operations = cast("list[Any]", getattr(conversion, "operations", []))
    return [(type(each).__name__, getattr(each, "dim", None)) for each in operations] == [("Split", 0)]


def _last_words(patterns: Sequence[str]) -> list[str]:
    """The last words of patterns before `weight` and `bias`."""
    plain = (re.sub(r"\\|\$|\^", "", pattern).rstrip(".") for pattern in patterns)
    return [each.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2] for each in plain]
