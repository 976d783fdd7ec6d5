"""The formats of published quantised weights, recognised by the names of tensors.

A quantiser replaces a matrix `M.weight` by several tensors. Each format is a row of FORMATS; no tensor is read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import cast

from bringup.spec import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One published format.

    `marks` are sets of parts, each of which is enough to recognise it. `methods` are its `quant_method`s in
    config.json. `dequantise` describes how to obtain plain weights with the quantiser's own tools.
    """

    name: str
    marks: tuple[frozenset[str], ...]
    methods: tuple[str, ...]
    dequantise: str = ""


def _any_of(*marks: str) -> tuple[frozenset[str], ...]:
    """Marks from texts such as "qweight g_idx"."""
    return tuple(frozenset(mark.split()) for mark in marks)


def _transformers(config: str) -> str:
    return f"transformers: `from_pretrained(…, quantization_config={config}(dequantize=True))`, then `save_pretrained`"


# Part names as the quantisers save them: AutoAWQ (awq/modules/linear/gemm.py), GPTQModel (nn_modules/qlinear),
# bitsandbytes (functional.py `QuantState.as_dict`, nn/modules.py `Linear8bitLt`), compressed-tensors (compressors/),
# NVIDIA ModelOpt (torch/export), transformers (integrations/finegrained_fp8.py, mxfp4.py, eetq.py), optimum-quanto
# (tensor/weights), AQLM (inference.py). If several rows fit, the config's method decides, else the longest mark, else
# the first row.
FORMATS = (
    Format(
        name="bitsandbytes",
        marks=_any_of("weight.absmax", "SCB"),
        methods=("bitsandbytes",),
        dequantise="transformers: `from_pretrained(…).dequantize()`, then `save_pretrained`",
    ),
    Format(name="GPTQ", marks=_any_of("qweight g_idx", "qweight"), methods=("gptq", "auto-round")),
    Format(name="AWQ", marks=_any_of("qweight qzeros"), methods=("awq",)),
    Format(
        name="compressed-tensors",
        marks=_any_of("weight_packed"),
        methods=("compressed-tensors",),
        dequantise=_transformers("CompressedTensorsConfig"),
    ),
    Format(name="NVFP4", marks=_any_of("weight_scale_2", "weight_scale weight_scale_2"), methods=("modelopt", "nvfp4")),
    Format(
        name="FP8 with one scale a block",
        marks=_any_of("weight_scale_inv", "scale_inv"),
        methods=("fp8",),
        dequantise=_transformers("FineGrainedFP8Config"),
    ),
    Format(
        name="8-bit weights with one scale a tensor or row",
        marks=_any_of("weight_scale"),
        methods=("compressed-tensors", "modelopt", "fbgemm_fp8", "quark"),
    ),
    Format(
        name="MXFP4",
        marks=_any_of("blocks scales"),
        methods=("mxfp4",),
        dequantise=_transformers("Mxfp4Config"),
    ),
    Format(name="EETQ", marks=_any_of("weight_scales"), methods=("eetq",)),
    Format(name="quanto", marks=_any_of("weight._data"), methods=("quanto",)),
    Format(name="AQLM", marks=_any_of("codes codebooks"), methods=("aqlm",)),
)

# A tensor's name as the plain tensor's name and its part. `M.qweight` is part `qweight` of `M.weight`.
_OF_MODULE = re.compile(
    r"qweight|qzeros|scales|g_idx|SCB|weight_format|codes|codebooks|"
    r"weight_(?:packed|shape|scale|scale_2|scale_inv|scales|global_scale|zero_point|g_idx)|"
    r"(?:input|output)_(?:scale|scale_inv|scale_ub|global_scale|zero_point)"
)
# `M.gate_up_proj_blocks` is part `blocks` of `M.gate_up_proj`, which has no `.weight`.
_OF_TENSOR = re.compile(r"(.*\w)_(blocks|scales|scale_inv)")
# `M.weight.absmax` is part `weight.absmax` of `M.weight`.
_BELOW = re.compile(
    r"(.*\.|)weight\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state|_data|_scale|_shift)"
    r"((?<=quant_state)\.\w+|(?<!quant_state))"  # the name of a state ends with the data type
)


@lru_cache(maxsize=1 << 18)  # a check of wrong names compares each name many times
def part_of(name: str) -> tuple[str, str] | None:
    """The plain tensor that a quantiser's tensor belongs to, and its part; None for any other name."""
    if "weight." in name and (match := _BELOW.fullmatch(name)):
        return f"{match[1]}weight", f"weight.{match[2]}"
    start = name.rfind(".") + 1
    found = _part_of(name[start:])
    return found and (name[:start] + found[0], found[1])


@cache
def _part_of(last: str) -> tuple[str, str] | None:
    """`part_of` for the last segment of a name, of which even a large checkpoint has few."""
    if _OF_MODULE.fullmatch(last):
        return "weight", last
    match = _OF_TENSOR.fullmatch(last)
    return match and (match[1], match[2])


def parts_of(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """{plain tensor: {part: name}} for all names that are parts."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        if part := part_of(name):
            found.setdefault(part[0], {})[part[1]] = name
    return found


def format_of(parts: Iterable[str], method: str = "") -> Format | None:
    """The format of a matrix with these parts; `method` is the config's."""
    return _format_of(frozenset(parts), method)


@cache
def _format_of(there: frozenset[str], method: str) -> Format | None:
    fitting = [(max((len(m) for m in row.marks if m <= there), default=0), row) for row in FORMATS]
    return max(
        (row for size, row in fitting if size),
        key=lambda row: (method in row.methods, *(size for size, other in fitting if other is row)),
        default=None,
    )


def by_method(method: str) -> Format | None:
    """The format of a config's `quant_method`."""
    return next((row for row in FORMATS if method in row.methods), None)


def block_size(pairs: Iterable[tuple[Shape, Shape]]) -> Shape | None:
    """The block that fits every (matrix, scales) pair of shapes; a power of two if one fits, None if no block does.

    A count c of blocks of b in n elements is c = ceil(n / b), so that n/c <= b < n/(c - 1).
    """
    bounds: list[tuple[int, float]] = []
    for shape, scales in pairs:
        if len(shape) != len(scales) or 0 in scales or (bounds and len(bounds) != len(shape)):
            return None
        each = [(-(-n // c), -(-n // (c - 1)) - 1 if c > 1 else math.inf) for n, c in zip(shape, scales, strict=True)]
        joined = zip(bounds or each, each, strict=True)
        bounds = [(max(low, more), min(high, less)) for (low, high), (more, less) in joined]
    if any(low > high for low, high in bounds):
        return None
    powers = [1 << (low - 1).bit_length() for low, _ in bounds]
    return tuple(p if p <= high else low for p, (low, high) in zip(powers, bounds, strict=True))


# The keys of a `quantization_config` that describe the weights.
WORDS = (
    "quant_method", "quant_algo", "format", "bits", "group_size", "w_bit", "q_group_size", "weight_block_size",
    "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type",
)  # fmt: skip


GROUPS = ("quantization_config", "compression_config")
PATHS = (*((key,) for key in GROUPS), *(("text_config", key) for key in GROUPS))


def quantization_words(config: Mapping[str, object]) -> Mapping[str, object]:
    """The `quantization_config` of a config.json, or of the text model in it; empty without one.

    `compression_config` is the earlier name in compressed-tensors. The words of AutoAWQ's quant_config.json have no
    `quant_method` (`AwqConfig.to_dict` in awq/models/_config.py).
    """
    found = _under(config, quantization_path(config))
    if not found:
        return {}
    early = {"quant_method": "awq"} if "w_bit" in found and "quant_method" not in found else {}
    return {**early, **found}


def quantization_path(config: Mapping[str, object]) -> tuple[str, ...]:
    """The keys that lead to the `quantization_config` of a config.json, outermost first; without one, those it would
    have."""
    return next((path for path in PATHS if _under(config, path)), PATHS[0])


def without_quantization(config: Mapping[str, object]) -> dict[str, object]:
    """A config without any of these groups."""
    text = config.get("text_config")
    inner = {"text_config": _without_groups(cast("Mapping[str, object]", text))} if isinstance(text, Mapping) else {}
    return _without_groups(config) | inner


def _without_groups(words: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in words.items() if key not in GROUPS}


def _under(config: object, path: Iterable[str]) -> Mapping[str, object]:
    """The object under some keys; empty if there is none."""
    for key in path:
        config = cast("Mapping[str, object]", config).get(key) if isinstance(config, Mapping) else None
    return cast("Mapping[str, object]", config) if isinstance(config, Mapping) else {}
