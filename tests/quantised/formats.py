"""Writers of published formats: the tensors that store a float matrix, and their dequantised matrix.

Each names the source of its layout. Values are computed here by loops, never by the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tests.quantised.numbers import BF16, E2M1_VALUES, E4M3, e2m1, in_blocks, largest, pairs, words

Tensors = dict[str, np.ndarray]
Written = tuple[Tensors, np.ndarray]  # parts by name, and the exact matrix, float32
F32 = np.float32


@dataclass(frozen=True)
class Format:
    """`words` are the `quantization_config`, `sidecar` those of hf_quant_config.json; `write` is for one matrix.

    `head`: what is written of lm_head; without it the head is plain. `also`: tensors next to a module's, by part.
    """

    words: Mapping[str, Any]
    write: Callable[[np.ndarray], Written]
    sidecar: Mapping[str, Any] = field(default_factory=dict)
    also: Mapping[str, np.ndarray] = field(default_factory=dict)
    head: bool = False


def scaled(
    matrix: np.ndarray, block: tuple[int, int], *, dtype: Any = E4M3, scale: Any = F32, shape: Any = None
) -> Written:
    """e4m3 or int8, with one scale a block: what `llm-compressor` and FBGEMM write."""
    block = (block[0] or len(matrix), block[1] or matrix.shape[1])
    top = 448 if dtype is E4M3 else 127
    scales = np.maximum(largest(matrix, block) / top, 1e-8).astype(scale)
    each = in_blocks(scales, matrix.shape, block)
    codes = (matrix / each).astype(dtype) if dtype is E4M3 else np.rint(matrix / each).clip(-128, 127).astype(dtype)
    given = scales if shape is None else scales.reshape(shape(scales))
    return {"weight": codes, "weight_scale": given}, codes.astype(F32) * each


def zeroed(matrix: np.ndarray) -> Written:
    """int8 with zero points, one a row (compressed-tensors, asymmetric `channel`)."""
    low, high = matrix.min(1, keepdims=True), matrix.max(1, keepdims=True)
    scales = ((high - low) / 255).astype(F32)
    zeros = np.rint(-128 - low / scales).astype(np.int8)
    codes = np.rint(matrix / scales + zeros).clip(-128, 127).astype(np.int8)
    exact = (codes.astype(F32) - zeros.astype(F32)) * scales
    return {"weight": codes, "weight_scale": scales, "weight_zero_point": zeros}, exact


def packed(
    matrix: np.ndarray, bits: int, group: int, *, zero: bool = False, order: bool = False, scale: Any = F32
) -> Written:
    """Whole numbers in int32 (compressed-tensors `pack-quantized`): signed codes plus half the range.

    With `zero`, zero points are packed likewise along rows. With `order`, columns belong to groups by `weight_g_idx`.
    """
    out, width = matrix.shape
    half, group = 1 << bits - 1, group or width
    of = np.arange(width) // group
    if order:
        of = np.random.default_rng(0).permutation(of)
    count = of.max() + 1
    scales, zeros = np.empty((out, count), scale), np.zeros((out, count), np.int64)
    for g in range(count):
        part = matrix[:, of == g]
        if zero:
            scales[:, g] = (part.max(1) - part.min(1)) / (2 * half - 1)
            zeros[:, g] = np.rint(-half - part.min(1) / scales[:, g].astype(F32)).clip(-half, half - 1)
        else:
            scales[:, g] = np.abs(part).max(1) / (half - 1)
    each = scales.astype(F32)[:, of]
    codes = np.rint(matrix / each + zeros[:, of]).clip(-half, half - 1).astype(np.int64)
    parts = {
        "weight_packed": words(codes + half, bits),
        "weight_scale": scales,
        "weight_shape": np.array(matrix.shape, np.int64),
    }
    if zero:
        parts["weight_zero_point"] = np.ascontiguousarray(words((zeros + half).T, bits).T)
    if order:
        parts["weight_g_idx"] = of.astype(np.int32)
    return parts, (codes - zeros[:, of]).astype(F32) * each


def nvfp4(matrix: np.ndarray, *, inverse: bool = False) -> Written:
    """e2m1 in groups of 16 with e4m3 scales and one float32 scale (ModelOpt's `NVFP4QTensor`; vLLM's modelopt.py).

    `inverse`: compressed-tensors has what scales were multiplied by, as `weight_global_scale` [1].
    """
    outer = F32(np.abs(matrix).max() / (6 * 448))
    outer = F32(1) / F32(np.float32(1) / outer) if inverse else outer
    scales = (largest(matrix, (1, 16)) / 6 / outer).astype(E4M3)
    each = in_blocks(scales.astype(F32) * outer, matrix.shape, (1, 16))
    codes = e2m1(np.divide(matrix, each, out=np.zeros_like(matrix), where=each > 0))
    exact = E2M1_VALUES[codes] * each
    if inverse:
        parts = {"weight_packed": pairs(codes), "weight_global_scale": np.array([F32(1) / outer], F32)}
        outer = F32(1) / parts["weight_global_scale"][0]
        exact = E2M1_VALUES[codes] * in_blocks(scales.astype(F32) * outer, matrix.shape, (1, 16))
    else:
        parts = {"weight": pairs(codes), "weight_scale_2": np.array(outer, F32)}
    return parts | {"weight_scale": scales}, exact


def mxfp4(matrix: np.ndarray, payload: str) -> Written:
    """e2m1 in groups of 32 with e8m0 scales (OCP Microscaling Formats 1.0; AMD Quark, compressed-tensors)."""
    exponents = np.ceil(np.log2(np.maximum(largest(matrix, (1, 32)), 1e-9) / 6)).astype(np.int64)
    each = in_blocks(np.exp2(exponents), matrix.shape, (1, 32))
    codes = e2m1(matrix / each)
    parts = {payload: pairs(codes), "weight_scale": (exponents + 127).astype(np.uint8)}
    return parts, E2M1_VALUES[codes] * each


def mxfp8(matrix: np.ndarray) -> Written:
    """e4m3 in groups of 32 with e8m0 scales (OCP Microscaling Formats 1.0, sections 5.1 and 6.3: 2^(exponent of the
    largest - 8)); ModelOpt's `MXFP8QTensor` stores the exponents as bytes."""
    exponents = np.floor(np.log2(np.maximum(largest(matrix, (1, 32)), 1e-9))).astype(np.int64) - 8
    each = in_blocks(np.exp2(exponents), matrix.shape, (1, 32))
    codes = (matrix / each).clip(-448, 448).astype(E4M3)
    return {"weight": codes, "weight_scale": (exponents + 127).astype(np.uint8)}, codes.astype(F32) * each


def compressed(format: str, weights: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A `quantization_config` of compressed-tensors, as llm-compressor saves it."""
    usual = {"dynamic": False, "symmetric": True, "type": "int", "observer": "minmax", "observer_kwargs": {}}
    group = {"targets": ["Linear"], "weights": usual | dict(weights), "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*mlp.gate$"], "config_groups": {"group_0": group | {"output_activations": None}},
        "kv_cache_scheme": None, "global_compression_ratio": None, "version": "0.12.2", "sparsity_config": {},
        "transform_config": {},
    } | more  # fmt: skip


def modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    """The words of ModelOpt's hf_quant_config.json."""
    words = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*.mlp.gate"]} | more
    return {"producer": {"name": "modelopt", "version": "0.33.0"}, "quantization": words}


def quark(weight: Mapping[str, Any]) -> dict[str, Any]:
    """AMD Quark's words, as in config.json of its MXFP4 checkpoints."""
    spec = {"is_dynamic": False, "symmetric": None, "round_method": "half_even", "observer_cls": "PerBlockMXObserver"}
    whole = {"weight": spec | dict(weight), "input_tensors": None, "bias": None}
    return {
        "quant_method": "quark", "global_quant_config": whole,
        "exclude": ["lm_head", "re:.*mlp\\.gate$"], "layer_quant_config": {}, "layer_type_quant_config": {},
        "algo_config": None, "kv_cache_quant_config": {}, "quant_mode": "eager_mode", "version": "0.10",
        "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
    }  # fmt: skip


def scalar(scales: np.ndarray) -> tuple[int, ...]:
    return ()


def flat(scales: np.ndarray) -> tuple[int, ...]:
    return (len(scales),)


def spread(scales: np.ndarray) -> tuple[int, ...]:
    """ModelOpt's scales of blocks, as vLLM's `ModelOptFp8PbWoLinearMethod` expects them."""
    rows, columns = scales.shape
    return (rows, 1, columns, 1)


ONE, STATIC = np.array(0.5, F32), {"input_scale": np.array(0.25, F32)}
MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "ch_axis": -1}
INT8 = {"num_bits": 8, "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float"}
FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
INT4 = {"num_bits": 4, "strategy": "group", "group_size": 32}
NAMES = ["lm_head"]

FORMATS: Mapping[str, Format] = {
    "fp8-tensor": Format(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": NAMES},
        partial(scaled, block=(0, 0), shape=scalar), also=STATIC,
    ),
    "fp8-inv": Format(
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None, "dequantize": False,
         "modules_to_not_convert": NAMES},
        lambda matrix: _renamed(scaled(matrix, (0, 0), scale=BF16, shape=scalar)), also={"activation_scale": ONE},
    ),
    "fbgemm": Format(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": NAMES},
        partial(scaled, block=(1, 0)),
    ),
    "modelopt-fp8": Format({}, partial(scaled, block=(0, 0), shape=scalar), modelopt("FP8"), STATIC | {"k_scale": ONE}),
    "modelopt-fp8-rows": Format({}, partial(scaled, block=(1, 0), shape=flat), modelopt("FP8_PER_CHANNEL_PER_TOKEN")),
    "modelopt-nvfp4": Format({}, nvfp4, modelopt("NVFP4", group_size=16), STATIC),
    "modelopt-nvfp4-config": Format(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": NAMES, "kv_cache_scheme": {"num_bits": 8},
         "config_groups": {"group_0": {"targets": ["Linear"]}}, "producer": {"name": "modelopt"}},
        nvfp4, also=STATIC,
    ),
    "quark-mxfp4": Format(quark(MX), partial(mxfp4, payload="weight")),
    "quark-fp8": Format(
        quark({"dtype": "fp8_e4m3", "qscheme": "per_tensor"}), partial(scaled, block=(0, 0), shape=scalar),
    ),
    "ct-int8": Format(compressed("int-quantized", INT8), partial(scaled, block=(1, 0), dtype=np.int8)),
    "ct-int8-zeros": Format(compressed("int-quantized", INT8 | {"symmetric": False}), zeroed),
    "ct-fp8-tensor": Format(
        compressed("naive-quantized", FP8 | {"strategy": "tensor"}), partial(scaled, block=(0, 0), shape=flat),
        also=STATIC,
    ),
    "ct-fp8-rows": Format(compressed("float-quantized", FP8 | {"strategy": "channel"}), partial(scaled, block=(1, 0))),
    "ct-fp8-blocks": Format(
        compressed("float-quantized", FP8 | {"strategy": "block", "block_structure": [16, 32]}),
        partial(scaled, block=(16, 32)),
    ),
    "ct-int4": Format(compressed("pack-quantized", INT4), partial(packed, bits=4, group=32)),
    "ct-int4-zeros": Format(
        compressed("pack-quantized", INT4 | {"symmetric": False}), partial(packed, bits=4, group=32, zero=True)
    ),
    "ct-int4-rows": Format(
        compressed("pack-quantized", INT8 | {"num_bits": 4}), partial(packed, bits=4, group=0, scale=BF16),
    ),
    "ct-int4-order": Format(
        compressed("pack-quantized", INT4 | {"actorder": "group"}), partial(packed, bits=4, group=32, order=True)
    ),
    "ct-int8-packed": Format(compressed("pack-quantized", INT8), partial(packed, bits=8, group=0)),
    "ct-nvfp4": Format(compressed("nvfp4-pack-quantized", FP4), partial(nvfp4, inverse=True)),
    "ct-mxfp4": Format(
        compressed("mxfp4-pack-quantized", FP4 | {"strategy": "group", "group_size": 32}),
        partial(mxfp4, payload="weight_packed"),
    ),
    "modelopt-mxfp8": Format({}, mxfp8, modelopt("MXFP8", group_size=32)),
    "quark-int8": Format(
        quark({"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0}),
        partial(scaled, block=(1, 0), dtype=np.int8, shape=flat),
    ),
    "quark-int8-tensor": Format(
        quark({"dtype": "int8", "qscheme": "per_tensor"}), partial(scaled, block=(0, 0), dtype=np.int8, shape=scalar),
    ),
}  # fmt: skip
# Of blocks that are larger than the matrices of most tests: see `WIDE` in checkpoints.py.
FP8_PB_WO = Format({}, partial(scaled, block=(128, 128), shape=spread), modelopt("FP8_PB_WO"))


def _renamed(written: Written) -> Written:
    """The scale under the name that transformers gives it."""
    parts, exact = written
    return {"weight": parts["weight"], "weight_scale_inv": parts["weight_scale"]}, exact
