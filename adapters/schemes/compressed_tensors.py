"""compressed-tensors, the format of llm-compressor: integers and floats of several widths, by groups of modules.

Source: the package compressed-tensors 0.20 (`quantization/quant_config.py`, `quant_args.py`, `compressors/`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.algebra.values import reciprocal
from bringup.adapters.schemes.arrays import (
    ACTIVATIONS,
    CACHES,
    E4M3,
    E8M0,
    by_block,
    exponents,
    mxfp4,
    nvfp4,
    scaled,
)
from bringup.adapters.schemes.compressed_weights import Weights, read_weights
from bringup.adapters.schemes.scheme import Modules, Scheme, Stored, StoredMatrix, Unread
from bringup.adapters.schemes.targets import Targets
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.form import Form
from bringup.shown import shown
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

SIZE = "the size of the matrix, which the graph declares"


@dataclass(frozen=True, slots=True)
class CompressedTensors(Stored):
    """`groups` are the settings of modules, None for plain ones: by name, else by expression, else by class."""

    scheme: ClassVar[str] = "compressed-tensors"
    parts: ClassVar[tuple[str, ...]] = (
        "weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_global_scale",
    )  # fmt: skip
    unread: ClassVar[Mapping[str, str]] = {
        **ACTIVATIONS,
        **CACHES,
    }
    keeps_order: ClassVar[bool] = True
    groups: tuple[tuple[Targets, Weights | None], ...]
    unquantized: UnquantizedModules

    def weights(self, modules: Modules) -> Weights | None:
        """The settings of a module; None if it is plain, or if no group includes it."""
        ranked = [(targets.rank(modules), weights) for targets, weights in self.groups]
        (rank, _), found = min(ranked, key=lambda one: one[0])
        return found if rank < Targets.NONE else None

    def stores(self, modules: Modules) -> bool:
        return self.weights(modules) is not None and not any(module in self.unquantized for module in modules)

    def unread_parts(self) -> Iterator[Unread]:
        yield from (Unread(part, why) for part, why in self.unread.items())
        yield Unread("weight_shape", SIZE, wrong=partial(_other_size, self))

    def matrix(self, weight: StoredMatrix) -> QuantisedMatrix:
        found = self.weights(weight.modules)
        assert found is not None  # otherwise the config does not list it as quantised
        name, block = f"{self.scheme} {found.format}", found.block
        if found.format == "pack-quantized":
            return _packed(name, weight, found)
        if found.format == "nvfp4-pack-quantized":
            outer = reciprocal(weight.part("weight_global_scale", "1", "float32"))
            return nvfp4(name, weight, "weight_packed", block[1], outer)
        if found.format == "mxfp4-pack-quantized":
            return mxfp4(name, weight, "weight_packed")
        if found.format == "mxfp8-quantized":
            parts = {"codes": weight.part("weight", "out in", E4M3), "scales": exponents(weight, block)}
            return QuantisedMatrix(name, Form(codes=E4M3, block=block, scale=E8M0), parts)
        return scaled(name, weight, E4M3 if found.float else "int8", block)


def _other_size(stored: CompressedTensors, modules: Modules, parts: Mapping[str, TensorInfo], size: np.ndarray) -> str:
    """Whether `weight_shape` has the rows and columns whose codes are in the words of `weight_packed`."""
    weights, words = stored.weights(modules), parts.get("weight_packed")
    if weights is None or words is None or len(words.shape) != 2:
        return ""  # the check of headers reports it
    rows, columns = words.shape
    each, found = 32 // weights.bits, [int(number) for number in size.reshape(-1)]
    if weights.format != "pack-quantized" or (len(found) == 2 and (found[0], -(-found[1] // each)) == (rows, columns)):
        return ""
    return f"it states {found}, but `weight_packed` has {rows} rows of {columns} words of {each} values"


def _packed(name: str, weight: StoredMatrix, found: Weights) -> QuantisedMatrix:
    """Integers packed in words, the first in the low bits, plus half their range.

    Zero points are packed likewise, along rows; but if they have more than one row they are separate integers.
    """
    codes, each, half = f"uint{found.bits}", 32 // found.bits, 1 << found.bits - 1
    scale_axes = by_block(found.block)
    packed = weight.part("weight_packed", f"out in:{each}", "int32").bits(codes, "value")
    parts = {
        "codes": weight.within(packed.mv("out word value -> out (word value)"), "out in"),
        "scales": weight.part("weight_scale", scale_axes, "float32"),
    }
    zero, offset = "", half
    if not found.symmetric and found.block[0] != 1:
        zero, parts["zeros"] = "int8", weight.part("weight_zero_point", scale_axes, "int8")
    elif not found.symmetric:
        zero, offset = codes, 0
        words = weight.part("weight_zero_point", by_block((each, found.block[1])), "int32")
        zeros = words.bits(codes, "value").mv("word block value -> (word value) block")
        parts["zeros"] = weight.within(zeros, scale_axes)
    if found.index:
        parts["index"] = weight.part("weight_g_idx", "in", "int32")
    form = Form(codes=codes, block=found.block, offset=offset, zero=zero, index=found.index)
    return QuantisedMatrix(name, form, parts)


def read(words: Fields) -> CompressedTensors | None:
    """Ignores notes of tools, and keys that affect a cache or activations only."""
    unquantized = UnquantizedModules.from_fields(words)
    words.read |= {"kv_cache_scheme", "global_compression_ratio", "version", "moe_sparsity_config", "run_compressed"}
    words.only("quantization_status", "compressed", "frozen", None)
    _only_dense(words)
    if words.group("transform_config"):
        words.error("BU122", "config sets `transform_config`: rotations of weights are not read", "transform_config")
    format, groups = words.get("format", str, "dense"), list[tuple[Targets, Weights | None]]()
    for name, group in words.group("config_groups").items():
        if not isinstance(group, dict):
            help = "write its `targets` and `weights`, as compressed-tensors does when it saves"
            words.error("BU121", f"group `{name}` of `config_groups` is {shown(group)}", "config_groups", help)
            continue
        inner = Fields(cast("dict[str, Any]", group), f"`config_groups.{name}`")
        weights = read_weights(inner, format)
        targets = Targets.of(inner, "targets")
        words.findings += inner.done()
        groups.append((targets, weights))
    return CompressedTensors(tuple(groups), unquantized) if any(weights for _, weights in groups) else None


def _only_dense(words: Fields) -> None:
    """Rejects sparse weights, of which only the nonzero values are stored."""
    sparse: object = words.group("sparsity_config").get("format", "dense")
    if sparse != "dense":
        message = f"config sets `sparsity_config.format` = {shown(sparse)}; weights are read as 'dense' only"
        words.error("BU122", message, "sparsity_config")


scheme = Scheme(
    name=CompressedTensors.scheme,
    methods=("compressed-tensors",),
    read=read,
    dequantise="transformers: `from_pretrained(…, quantization_config=CompressedTensorsConfig(dequantize=True))`, then "
    "`save_pretrained`",
)
