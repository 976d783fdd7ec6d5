"""A LoRA as the two tensors of a TensorRT-LLM request, and back.

`LoraWeights` [rows, D·Hi + Ho·D] has a row for each layer and module: A [D, Hi], then B [Ho, D], flat; shorter rows
are padded with zeros. `LoraConfig` [rows, 3] has each row's module, layer and D. Both are of the complete model: its
ranks slice them. B is multiplied by the scale, because the request has none. For experts a row has the A of all, then
the B of all. Source: docs/source/advanced/lora.md and examples/hf_lora_convert.py of NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bringup.adapters.apply.rank_plan import Stages
from bringup.adapters.lora.factors import Lora, LowRank, narrowed, scaled
from bringup.adapters.trtllm.lora_modules import IDS, module_id
from bringup.diagnostics import BringupError, fail
from bringup.grouping import listed

if TYPE_CHECKING:
    import numpy as np

QKV = tuple(IDS[f"attn_{x}"] for x in "qkv")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a module: inputs Hi, outputs Ho, and the number of experts, () without experts."""

    hi: int
    ho: int
    experts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One module of one layer: a [D, Hi] and b [Ho, D], or for experts [e, D, Hi] and [e, Ho, D], float32."""

    module: int
    layer: int
    a: np.ndarray
    b: np.ndarray

    @property
    def rank(self) -> int:
        return self.a.shape[-2]

    @property
    def place(self) -> tuple[int, int]:
        return self.layer, self.module


def rows_of(lora: Lora, arrays: Mapping[str, np.ndarray], stages: Stages) -> list[Row]:
    """Every module's row, in the order of layers, then of modules. `arrays` are `Lora.arrays`, of the complete model.

    If q, k and v have the same A, as those of a fused matrix do, they are one row `attn_qkv`. Raises BU170 for a
    parameter without a module number.
    """
    if refused := [name for name in lora.sites if number_of(name, stages) is None]:
        raise _no_number(refused)
    rows: list[Row] = []
    shared: dict[int, dict[int, object]] = {}
    for name, factors in lora.sites.items():
        layer, module = number_of(name, stages) or (0, 0)
        rows.append(Row(module, layer, *_joined(factors, arrays)))
        if module in QKV:
            entry = lora.plan.entries[factors[0].a]
            shared.setdefault(layer, {})[module] = (entry.sources, entry.region.nests, len(factors))
    fused = {layer for layer, of in shared.items() if len(of) == len(QKV) and len(set(of.values())) == 1}
    return sorted(_fused(rows, fused), key=lambda row: row.place)


def number_of(name: str, stages: Stages) -> tuple[int, int] | None:
    """The layer and the module number of a parameter; None if TensorRT-LLM has no number for it."""
    layer = stages.layer(name)
    found = None if layer is None else module_id(name[len(f"{stages.path}.{layer}.") :])
    return None if layer is None or found is None else (layer, found)


def _no_number(names: Sequence[str]) -> BringupError:
    return fail(
        "BU170",
        f"TensorRT-LLM has no number for {listed(names)}, which the adapter changes",
        help="merge the adapter into its base (`bringup lora merge`), and convert that",
        parameter=names[0],
    )


def _joined(factors: Sequence[LowRank], arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Factors whose products are summed, as one pair: concatenated along the rank."""
    import numpy as np

    a = [arrays[factor.a].astype(np.float32) for factor in factors]
    b = [scaled(arrays[factor.b], factor.scale) for factor in factors]
    return np.concatenate(a, axis=-2), np.concatenate(b, axis=-1)


def _fused(rows: Iterable[Row], layers: set[int]) -> Iterable[Row]:
    import numpy as np

    parts: dict[int, list[Row]] = {}
    for row in rows:
        if row.layer in layers and row.module in QKV:
            parts.setdefault(row.layer, []).append(row)
        else:
            yield row
    for layer, three in parts.items():
        ordered = sorted(three, key=lambda row: row.module)
        yield Row(IDS["attn_qkv"], layer, ordered[0].a, np.concatenate([row.b for row in ordered]))


def pack(rows: Sequence[Row], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """LoraWeights in `dtype` and LoraConfig, int32. Raises BU174 for values out of the range of `dtype`."""
    import numpy as np

    from bringup.adapters.checkpoints.arrays import numpy_dtype

    width = max((row.a.size + row.b.size for row in rows), default=0)
    weights = np.zeros((len(rows), width), numpy_dtype(dtype))
    for into, row in zip(weights, rows, strict=True):
        flat = np.concatenate([row.a.reshape(-1), row.b.reshape(-1)])
        into[: flat.size] = narrowed(flat, dtype, f"module {row.module} of layer {row.layer}")
    config = np.array([[row.module, row.layer, row.rank] for row in rows], np.int32).reshape(len(rows), 3)
    return weights, config


def unpack(weights: np.ndarray, config: np.ndarray, sizes: Mapping[tuple[int, int], Sizes]) -> list[Row]:
    """The rows of the two tensors. `sizes` has the sizes of each module by layer and module number.

    Raises BU173 for tensors in another format, or of another model.
    """
    import numpy as np

    if weights.ndim == config.ndim == 3 and len(weights) == len(config) == 1:  # as TensorRT-LLM's script writes them
        weights, config = weights[0], config[0]
    if weights.ndim != 2 or config.ndim != 2 or config.shape != (len(weights), 3):
        raise _bad(f"they have shapes {list(weights.shape)} and {list(config.shape)}")
    rows: list[Row] = []
    for number, (module, layer, rank) in enumerate(config.tolist()):
        size = sizes.get((layer, module))
        if size is None:
            raise _bad(f"row {number} is of module {module} in layer {layer}, which this model does not have")
        a, b = (*size.experts, rank, size.hi), (*size.experts, size.ho, rank)
        first, whole = int(np.prod(a)), int(np.prod(a)) + int(np.prod(b))
        if rank < 1 or whole > weights.shape[1] or np.any(weights[number, whole:]):
            raise _bad(f"row {number} does not hold factors of rank {rank} for {size.hi} inputs and {size.ho} outputs")
        flat = weights[number].astype(np.float32)
        rows.append(Row(module, layer, flat[:first].reshape(a), flat[first:whole].reshape(b)))
    return rows


def _bad(why: str) -> BringupError:
    help = "name the folder that `bringup lora convert` or hf_lora_convert.py wrote, and the model that it is of"
    return fail("BU173", f"these are not LoraWeights and LoraConfig of the model: {why}", help=help)
