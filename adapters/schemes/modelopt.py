"""NVIDIA ModelOpt's checkpoints: float8 and NVFP4, for the whole model or by layer.

Sources: ModelOpt's `torch/export`, and vLLM's `quantization/modelopt.py`, which reads the same keys in two spellings:
those of hf_quant_config.json (`quantization: {quant_algo, exclude_modules, …}`) and those of config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.schemes.arrays import (
    ACTIVATIONS,
    BY_MATRIX,
    BY_ROW,
    CACHES,
    E4M3,
    E8M0,
    exponents,
    nvfp4,
    scaled,
)
from bringup.adapters.schemes.scheme import Modules, Scheme, Stored, StoredMatrix
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.form import Form
from bringup.shown import shown

BLOCKS = {"FP8": BY_MATRIX, "FP8_PER_CHANNEL_PER_TOKEN": BY_ROW, "FP8_PB_WO": (128, 128), "MXFP8": (1, 32)}
GROUP = 16  # group size of NVFP4
KNOWN = (*BLOCKS, "NVFP4", "W4A16_NVFP4")
# Notes of ModelOpt, and keys that affect activations or caches only.
NOTES = {"kv_cache_quant_algo", "kv_cache_scheme", "config_groups", "producer", "has_zero_point", "quantization_status"}


class Algorithm(NamedTuple):
    """A `quant_algo`, and its `group_size`."""

    name: str
    group: int


@dataclass(frozen=True, slots=True)
class ModelOpt(Stored):
    """`layers` are the algorithms by module if several are mixed; otherwise all modules have `algorithm`."""

    scheme: ClassVar[str] = "ModelOpt"
    parts: ClassVar[tuple[str, ...]] = ("weight", "weight_scale", "weight_scale_2")
    unread: ClassVar[Mapping[str, str]] = {**ACTIVATIONS, **CACHES}
    keeps_order: ClassVar[bool] = True
    algorithm: Algorithm | None
    unquantized: UnquantizedModules
    layers: Mapping[str, Algorithm] = field(default_factory=dict[str, Algorithm])

    def algorithm_of(self, modules: Modules) -> Algorithm | None:
        """The algorithm of a module; None if it is not quantised."""
        return next((self.layers[module] for module in modules if module in self.layers), self.algorithm)

    def stores(self, modules: Modules) -> bool:
        listed = any(module in self.unquantized for module in modules)
        return not listed and self.algorithm_of(modules) is not None

    def matrix(self, weight: StoredMatrix) -> QuantisedMatrix:
        found = self.algorithm_of(weight.modules)
        assert found is not None  # otherwise the config does not list it as quantised
        name = f"{self.scheme} {found.name}"
        if found.name == "MXFP8":
            block = BLOCKS[found.name]
            parts = {"codes": weight.part("weight", "out in", E4M3), "scales": exponents(weight, block)}
            return QuantisedMatrix(name, Form(codes=E4M3, block=block, scale=E8M0), parts)
        if found.name in BLOCKS:
            return scaled(name, weight, E4M3, BLOCKS[found.name])
        return nvfp4(name, weight, "weight", found.group, weight.part("weight_scale_2", "", "float32"))


def read(words: Fields) -> ModelOpt | None:
    """Reads either spelling; activations and caches are not quantised, whatever the keys state for them."""
    words.read |= NOTES
    inner = words
    if "quantization" in words.raw:
        inner = Fields(words.group("quantization"), f"{words.family} `quantization`")
        inner.read |= NOTES
    unquantized = UnquantizedModules.from_fields(inner)
    layers = dict[str, Algorithm]()
    algorithm = _algorithm(inner, inner)
    if algorithm is not None and algorithm.name == "MIXED_PRECISION":
        algorithm = None
        for name, layer in inner.group("quantized_layers").items():
            if isinstance(layer, dict):
                of_layer = Fields(cast("dict[str, Any]", layer), f"`quantized_layers.{name}`")
                of_layer.read |= NOTES
                found = _algorithm(of_layer, inner)
                inner.findings += [] if inner.findings else of_layer.done()
                layers |= {name: found} if found else {}
    if inner is not words:
        words.findings += inner.done()
    return ModelOpt(algorithm, unquantized, layers) if algorithm or layers else None


def _algorithm(words: Fields, whole: Fields) -> Algorithm | None:
    """None if nothing is quantised; `whole` receives the finding, so that many layers of a kind are one finding."""
    words.read |= {"group_size"}
    text = words.optional("quant_algo", str)
    name = "" if text is None else text.upper()
    mixed = name == "MIXED_PRECISION" and words is whole
    if name and not mixed and name not in KNOWN:
        known = ", ".join((*KNOWN, "MIXED_PRECISION"))
        message = f"config sets `quant_algo` = {shown(text)}; the supported algorithms of ModelOpt are: {known}"
        whole.error("BU122", message, "quant_algo")
    usual = GROUP if "NVFP4" in name else 1
    return Algorithm(name, words.size("group_size", usual, null=usual)) if mixed or name in KNOWN else None


scheme = Scheme(name=ModelOpt.scheme, methods=("modelopt", "modelopt_fp4", "modelopt_mixed"), read=read)
