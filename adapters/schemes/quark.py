"""AMD Quark's own format: MXFP4, float8 and int8, for the whole model or by glob.

Sources: Quark's export (`export.weight_format` = real_quantized) as vLLM's `quantization/quark` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, cast

from bringup.adapters.algebra.quantised import QuantisedMatrix
from bringup.adapters.schemes.arrays import ACTIVATIONS, BY_MATRIX, BY_ROW, CACHES, E4M3, mxfp4, scaled
from bringup.adapters.schemes.scheme import Modules, Scheme, Stored, StoredMatrix
from bringup.graphs.config.fields import Fields
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.core.form import Block
from bringup.shown import shown

CODES = {"fp8_e4m3": E4M3, "int8": "int8"}
MOST = 1000  # globs of layers
# The observers of values, and how they were rounded.
NOTES = {"ch_axis", "round_method", "scale_type", "scale_calculation_mode", "mx_element_dtype", "observer_cls",
         "is_scale_quant", "block_size", "enable_buffer_reuse", "max_input_numel", "zero_point_type"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """The storage of weights; `codes` is "" for MXFP4."""

    codes: str
    block: Block


@dataclass(frozen=True, slots=True)
class Quark(Stored):
    """`layers` are globs of modules with settings of their own; the first that matches applies."""

    scheme: ClassVar[str] = "Quark"
    parts: ClassVar[tuple[str, ...]] = ("weight", "weight_scale", "weight_zero_point")
    unread: ClassVar[Mapping[str, str]] = {**ACTIVATIONS, **CACHES}
    keeps_order: ClassVar[bool] = True
    kind: Kind | None
    layers: tuple[tuple[str, Kind | None], ...]
    unquantized: UnquantizedModules

    def kind_of(self, modules: Modules) -> Kind | None:
        """The settings of a module; None if it is not quantised."""
        fitting = (kind for glob, kind in self.layers if any(fnmatchcase(module, glob) for module in modules))
        return next(fitting, self.kind)

    def stores(self, modules: Modules) -> bool:
        return not any(module in self.unquantized for module in modules) and self.kind_of(modules) is not None

    def matrix(self, weight: StoredMatrix) -> QuantisedMatrix:
        kind = self.kind_of(weight.modules)
        assert kind is not None  # otherwise the config does not list it as quantised
        if kind.codes:
            return scaled(f"{self.scheme} {kind.codes}", weight, kind.codes, kind.block)
        return mxfp4(f"{self.scheme} MXFP4", weight, "weight")


def read(words: Fields) -> Quark | None:
    """Activations and caches are not quantised, whatever the keys state for them."""
    words.read |= {"kv_cache_quant_config", "kv_cache_post_rope", "quant_mode", "version", "algo_config"}
    words.only("softmax_quant_spec", None)
    words.only("layer_type_quant_config", {}, None)
    exported: object = words.group("export").get("weight_format", "real_quantized")
    if exported != "real_quantized":
        message = f"config sets `export.weight_format` = {shown(exported)}; 'real_quantized' is read"
        words.error("BU122", message, "export")
    _without_rotations(words)
    whole = _kind(words, words.group("global_quant_config"), "global_quant_config")
    layers = words.group("layer_quant_config")
    if len(layers) > MOST:
        words.error("BU122", f"`layer_quant_config` has more than {MOST:,} globs", "layer_quant_config")
        layers = {}
    kinds = tuple((glob, _kind(words, layer, "layer_quant_config")) for glob, layer in layers.items())
    found = Quark(whole, kinds, UnquantizedModules.from_fields(words))
    return found if whole or any(kind for _, kind in kinds) else None


def _without_rotations(words: Fields) -> None:
    """Rejects algorithms that rotate activations at run time: the weights alone are those of another model."""
    algorithms: object = words.raw.get("algo_config")
    for each in cast("list[object]", algorithms) if isinstance(algorithms, list) else [algorithms]:
        name = cast("dict[str, object]", each).get("name") if isinstance(each, dict) else each
        if name is not None and (not isinstance(name, str) or "rotation" in name.lower()):
            words.error("BU122", f"`algo_config` has {shown(name)}, which changes activations", "algo_config")


def _kind(words: Fields, settings: object, key: str) -> Kind | None:
    """The settings of weights. Reports BU122 for unsupported ones; None if they are plain."""
    spec = cast("Mapping[str, Any]", settings).get("weight") if isinstance(settings, Mapping) else None
    if not spec:
        return None
    if not isinstance(spec, dict):
        words.error("BU122", f"`{key}` has weights in {shown(cast('object', spec))}; one step is read", key)
        return None
    inner = Fields(cast("dict[str, Any]", spec), f"`{key}.weight`")
    inner.read |= NOTES
    dtype, scheme = inner.get("dtype", str), inner.get("qscheme", str)
    group, format = inner.optional("group_size", int), inner.optional("scale_format", str)
    inner.only("is_dynamic", False, None)
    inner.only("symmetric", True, None)
    words.findings += inner.done()
    if (dtype, scheme, group, format) == ("fp4", "per_group", 32, "e8m0"):
        return Kind("", (1, 32))
    axis: object = inner.raw.get("ch_axis")
    if dtype in CODES and (scheme == "per_tensor" or (scheme == "per_channel" and axis in (0, None))):
        return Kind(CODES[dtype], BY_MATRIX if scheme == "per_tensor" else BY_ROW)
    message = (
        f"`{key}` has weights in {shown(dtype)}, {shown(scheme)}, `group_size` {shown(group)}; Quark's fp4 in groups "
        "of 32 with e8m0 scales is read, and its fp8_e4m3 and int8 with one scale a matrix or row"
    )
    words.error("BU122", message, key)
    return None


scheme = Scheme(name=Quark.scheme, methods=("quark",), read=read)
