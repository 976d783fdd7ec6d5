"""Converts the two tensors of a TensorRT-LLM request to the files of peft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bringup.adapters.apply.rank_plan import Stages
from bringup.adapters.apply.reverse import reverse
from bringup.adapters.lora.base import WHOLE, Base
from bringup.adapters.lora.derive import derive, sides
from bringup.adapters.lora.factors import Pair
from bringup.adapters.lora.trtllm import QKV, Row, Sizes, number_of
from bringup.adapters.trtllm.lora_modules import IDS
from bringup.diagnostics import BringupError
from bringup.graphs.core.axes import Axes
from bringup.graphs.core.signature import Signature
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

Place = tuple[int, int]  # layer and module


@dataclass(frozen=True, slots=True)
class Restored:
    """The `tensors` of adapter_model.safetensors, and the contents of adapter_config.json."""

    tensors: Mapping[str, np.ndarray]
    config: Mapping[str, Any]


def sizes_of_modules(signature: Signature, stages: Stages) -> dict[Place, Sizes]:
    """The sizes of a graph's modules, by layer and number; q, k and v also as one."""
    sizes: dict[Place, Sizes] = {}
    for name, declared in signature.items():
        place = number_of(name, stages)
        if place is not None and len(declared.axes) > 1:
            sizes[place] = _sizes(declared.axes)
    for layer in {layer for layer, _ in sizes}:
        three = [found for module in QKV if (found := sizes.get((layer, module)))]
        if len(three) == len(QKV):
            sizes[layer, IDS["attn_qkv"]] = Sizes(three[0].hi, sum(size.ho for size in three))
    return sizes


def _sizes(axes: Axes) -> Sizes:
    *experts, out, inner = (axis.size for axis in axes)
    return Sizes(inner, out, tuple(experts))


def restored(rows: Sequence[Row], base: Base, signature: Signature, stages: Stages) -> Restored:
    """The adapter for some rows, with peft's names of the base's modules; scales are in B, and alpha is r.

    Parameters that the base has in one matrix get one pair: if their A differ, their ranks are concatenated.
    """
    places = {place: name for name in signature if (place := number_of(name, stages))}
    rows_of = {places[row.place]: row for whole in rows for row in _split(whole, places, signature)}
    pairs: list[Pair] = []
    arrays: dict[str, np.ndarray] = {}
    for target in base.published:
        names = [use.entry.declared.name for use in base.uses.get(target, ())]
        if rows_of.keys().isdisjoint(names):
            continue
        parts = {name: rows_of.get(name) for name in names}
        rank = _side_by_side(parts, signature, arrays)
        hi, ho = sides(base, target)
        module = target.removesuffix(WHOLE)
        a = TensorInfo(f"base_model.model.{module}.lora_A.weight", "float32", (rank, hi))
        b = TensorInfo(f"base_model.model.{module}.lora_B.weight", "float32", (ho, rank))
        pairs.append(Pair(module=module, target=target, a=a, b=b, rank=rank, scale=1.0))
    lora, findings = derive(base, pairs)
    if findings:
        raise BringupError(*findings)
    return Restored(reverse(lora.plan, arrays), _config(pairs))


def _split(row: Row, places: Mapping[Place, str], signature: Signature) -> Iterator[Row]:
    """A row; for a fused q, k and v, three rows with the same A if the graph has them separately."""
    if row.place in places or row.module != IDS["attn_qkv"]:
        yield row
        return
    start = 0
    for module in QKV:
        stop = start + _sizes(signature[places[row.layer, module]].axes).ho
        yield Row(module, row.layer, row.a, row.b[start:stop])
        start = stop


def _side_by_side(parts: Mapping[str, Row | None], signature: Signature, arrays: dict[str, np.ndarray]) -> int:
    """Adds the arrays of parameters that share a pair, under the names of factors; returns the pair's rank."""
    import numpy as np

    rows = [row for row in parts.values() if row is not None]
    shared = all(np.array_equal(row.a, rows[0].a) for row in rows)
    distinct = rows[:1] if shared else rows
    a = np.concatenate([row.a for row in distinct], axis=-2)
    rank, start = a.shape[-2], 0
    for name, row in parts.items():
        size = _sizes(signature[name].axes)
        b = np.zeros((*size.experts, size.ho, rank), np.float32)
        if row is not None:
            b[..., start : start + row.rank] = row.b
            start += 0 if shared else row.rank
        arrays[f"{name}.lora_A"], arrays[f"{name}.lora_B"] = a, b
    return rank


def _config(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The contents of adapter_config.json: alpha is each module's rank, because scales are in B."""
    ranks = {pair.module: pair.rank for pair in pairs}
    usual = Counter(ranks.values()).most_common(1)[0][0]
    other = {module: rank for module, rank in ranks.items() if rank != usual}
    return {
        "peft_type": "LORA",
        "r": usual,
        "lora_alpha": usual,
        "rank_pattern": other,
        "alpha_pattern": other,
        "target_modules": list(ranks),
        "bias": "none",
        "use_rslora": False,
        "task_type": "CAUSAL_LM",
    }
