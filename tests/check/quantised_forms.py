"""Checkpoints in the formats that quantisers publish: names, dtypes and shapes of each, with arbitrary values.

Sources: AutoAWQ's `WQLinear_GEMM`, GPTQModel's `TorchQuantLinear`, bitsandbytes' `QuantState.as_dict` and
`Linear8bitLt`, compressed-tensors' `pack_quantized` and `naive_quantized`, NVIDIA ModelOpt's exported checkpoints,
transformers' `FP8Linear` and the MXFP4 experts of openai/gpt-oss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

GROUP = 16
PLAIN = (
    "norm",
    "weights_proj",
    "embed",
    "wte",
    "wpe",
    "lm_head",
    "embed_out",
    "router",
    "mlp.gate.weight",
    "ln_",
    "eh_proj",
    "mtp.fc",
)
COLUMNS_FIRST = ("attn.c_", "mlp.c_")
Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Form:
    """`words` are its `quantization_config`; `convert` gives the tensors that stand for one matrix `STEM.weight`."""

    name: str  # as bringup has it
    words: Mapping[str, Any]
    convert: Callable[[str, np.ndarray], Tensors]
    read: bool = False  # by a scheme of bringup's
    turns: bool = False  # whether matrices of GPT-2, [in, out], are [out, in] in it


def quantised(tensors: Mapping[str, np.ndarray], form: Form) -> Tensors:
    """Every matrix that quantisers convert, as this form stores it; the others as they are."""
    found: Tensors = {}
    of_gpt2 = any("wpe" in name for name in tensors)
    for name, array in tensors.items():
        convert = name.endswith(".weight") and array.ndim == 2 and not any(part in name for part in PLAIN)
        turned = array.T if form.turns and of_gpt2 and any(part in name for part in COLUMNS_FIRST) else array
        found |= form.convert(name.removesuffix(".weight"), turned) if convert else {name: array}
    return found


def _up(size: int, by: int) -> int:
    return -(-size // by)


def _awq(stem: str, array: np.ndarray) -> Tensors:
    out, width = array.shape
    return {
        f"{stem}.qweight": np.zeros((width, _up(out, 8)), np.int32),
        f"{stem}.qzeros": np.zeros((_up(width, GROUP), _up(out, 8)), np.int32),
        f"{stem}.scales": np.ones((_up(width, GROUP), out), np.float16),
    }


def _gptq(stem: str, array: np.ndarray) -> Tensors:
    out, width = array.shape
    return _awq(stem, array) | {
        f"{stem}.qweight": np.zeros((_up(width, 8), out), np.int32),
        f"{stem}.g_idx": np.zeros(width, np.int32),
    }


def _nf4(stem: str, array: np.ndarray) -> Tensors:
    blocks = _up(array.size, 64)
    return {
        f"{stem}.weight": np.zeros((_up(array.size, 2), 1), np.uint8),
        f"{stem}.weight.absmax": np.zeros(blocks, np.uint8),
        f"{stem}.weight.nested_absmax": np.ones(_up(blocks, 256), np.float32),
        f"{stem}.weight.nested_quant_map": np.ones(256, np.float32),
        f"{stem}.weight.quant_map": np.ones(16, np.float32),
        f"{stem}.weight.quant_state.bitsandbytes__nf4": np.zeros(80, np.uint8),
    }


def _int8(stem: str, array: np.ndarray) -> Tensors:
    return {
        f"{stem}.weight": np.ones(array.shape, np.int8),
        f"{stem}.SCB": np.ones(array.shape[0], np.float32),
        f"{stem}.weight_format": np.zeros((), np.uint8),
    }


def _packed(stem: str, array: np.ndarray) -> Tensors:
    out, width = array.shape
    return {
        f"{stem}.weight_packed": np.zeros((out, _up(width, 8)), np.int32),
        f"{stem}.weight_scale": np.ones((out, _up(width, GROUP)), ml_dtypes.bfloat16),
        f"{stem}.weight_shape": np.array(array.shape, np.int64),
    }


def _naive(stem: str, array: np.ndarray) -> Tensors:
    return {
        f"{stem}.weight": np.ones(array.shape, np.int8),
        f"{stem}.weight_scale": np.ones((len(array), 1), np.float32),
    }


def _nvfp4(stem: str, array: np.ndarray) -> Tensors:
    out, width = array.shape
    return {
        f"{stem}.weight": np.zeros((out, _up(width, 2)), np.uint8),
        f"{stem}.weight_scale": np.ones((out, _up(width, 16)), ml_dtypes.float8_e4m3fn),
        f"{stem}.weight_scale_2": np.ones((), np.float32),
        f"{stem}.input_scale": np.ones((), np.float32),
    }


def _fp8(stem: str, array: np.ndarray) -> Tensors:
    """One scale a matrix, as ModelOpt has it."""
    return {
        f"{stem}.weight": np.ones(array.shape, ml_dtypes.float8_e4m3fn),
        f"{stem}.weight_scale": np.ones((), np.float32),
        f"{stem}.input_scale": np.ones((), np.float32),
    }


def _fp8_blocks(stem: str, array: np.ndarray) -> Tensors:
    return {
        f"{stem}.weight": np.ones(array.shape, ml_dtypes.float8_e4m3fn),
        f"{stem}.weight_scale_inv": np.ones([_up(size, GROUP) for size in array.shape], np.float32),
    }


def _compressed(format: str, weights: Mapping[str, Any]) -> Mapping[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": "int", "symmetric": True, **weights}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}


FORMS = {
    "awq": Form(
        "AWQ",
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        _awq,
        read=True,
        turns=True,
    ),
    "gptq": Form(
        "GPTQ",
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
        _gptq,
        read=True,
        turns=True,
    ),
    "nf4": Form(
        "bitsandbytes",
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        },
        _nf4,
        read=True,
        turns=True,
    ),
    "int8": Form(
        "bitsandbytes",
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False},
        _int8,
        read=True,
        turns=True,
    ),
    "packed": Form(
        "compressed-tensors",
        _compressed("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": GROUP}),
        _packed,
        read=True,
    ),
    "naive": Form(
        "8-bit weights with one scale a tensor or row",
        _compressed("int-quantized", {"num_bits": 8, "strategy": "channel"}),
        _naive,
        read=True,
    ),
    "nvfp4": Form("NVFP4", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, _nvfp4, read=True),
    "fp8": Form(
        "8-bit weights with one scale a tensor or row",
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        _fp8,
        read=True,
    ),
    "fp8-blocks": Form(
        "FP8 with one scale a block",
        {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]},
        _fp8_blocks,
        read=True,
    ),
}
