"""The settings with which the reference loads quantised weights: dequantised without rounding, in a float model.

transformers 5.24 runs the modules of compressed-tensors and bitsandbytes as they are. Those of compressed-tensors round
activations if the config has settings for them, and cannot run in float32 if they unpack weights to bfloat16 (float4).
Those of bitsandbytes round activations to int8, and its code for 4 bits on processors does not support all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.planning.quantization import quantization_words
from bringup.shown import short
from bringup.spec import Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np
    import torch

STACKED = 3  # axes of a parameter of all experts
COMPRESSED_TENSORS, BITSANDBYTES = "compressed-tensors", "bitsandbytes"
SCALE, BLOCK_SCALE = "weight_scale", "weight_scale_inv"
_MIXED = ("dense", "mixed-precision")  # formats of a checkpoint whose groups have their own
_KEYS = ("quantization_config", "compression_config")  # the second is the earlier name


def dequantising(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with which transformers loads the weights as floats, and rounds no activations.

    Weights of compressed-tensors are dequantised while they are loaded. If groups of modules differ in their settings,
    transformers would use those of the first group for all, so there each module dequantises its own weights when it
    runs. Other formats are unchanged.
    """
    words = dict(quantization_words(config))
    groups = _groups(words)
    if words.get("quant_method", COMPRESSED_TENSORS) != COMPRESSED_TENSORS or not groups:
        return config
    first, *others = (group["weights"] for group in groups.values())
    words["config_groups"] = {name: _of_weights(group, words.get("format")) for name, group in groups.items()}
    words |= {"kv_cache_scheme": None, "dequantize": all(weights == first for weights in others)}
    return _replaced(config, words)


def is_dequantised(config: Mapping[str, Any]) -> bool:
    """Whether a result of `dequantising` dequantises weights while they are loaded."""
    return quantization_words(config).get("dequantize") is True


def with_floats(model: Any, config: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """The loaded model with float modules. `config` is that of the checkpoint."""
    import torch

    words = quantization_words(config)
    if words.get("quant_method") == BITSANDBYTES:
        modules = {name: module for name, module in model.named_modules() if hasattr(module, "weight")}
        states = {name: state for name, it in modules.items() if (state := getattr(it.weight, "quant_state", None))}
        for state in states.values():
            state.dtype = torch.float32  # otherwise weights are rounded to the dtype that was quantised
            state.shape = torch.Size([1, state.shape.numel()])  # 0.50 misplaces scales of blocks that span rows
        model = model.dequantize(dtype).to(dtype)
        for linear in map(model.get_submodule, states):
            linear.weight.data = linear.weight.data.reshape(linear.out_features, linear.in_features)
    elif words:
        for parameter in model.parameters():
            if parameter.ndim == STACKED:  # dequantised experts have the dtype of their scales
                parameter.data = parameter.data.to(dtype)
    return model


def without_reference(config: Mapping[str, Any]) -> str:
    """Why transformers does not compute with the weights that are stored, '' if it does.

    compressed-tensors 0.20 unpacks float4 to bfloat16, and multiplies in that dtype
    (`NVFP4PackedCompressor.decompress`). The product is exact if scales are powers of two, as in mxfp4. Those of nvfp4
    are float8, times a float32 scale.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as KNOWN

    words = quantization_words(config)
    method = str(words.get("quant_method", ""))
    if method and not any(name.startswith(method) for name in KNOWN):  # of bitsandbytes it has one for each width
        return f"it does not know the quantisation method `{short(method)}`"
    if any(group["weights"].get("strategy") == "tensor_group" for group in _groups(words).values()):
        return "compressed-tensors rounds the weights of nvfp4 to bfloat16"
    return ""


class Rewritten(NamedTuple):
    """A tensor that is written otherwise for transformers: its header, and its array from the stored one."""

    info: TensorInfo
    array: Callable[[np.ndarray], np.ndarray]


def rewritten_scales(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Rewritten]:
    """The scales that transformers reads otherwise than the format defines them, in a form that it reads correctly.

    compressed-tensors would compute weights in the dtype of scales in 16 bits. For float8 in blocks, transformers 5.24
    derives the block from the number of scales (`Fp8Dequantize`), which is wrong if the last block is cut off; in a
    finer grid, whose blocks divide both the matrix and the block of the config, the number is exact.
    """
    found: dict[str, Rewritten] = {}
    block = quantization_words(config).get("weight_block_size")
    for name, info in checkpoint.headers.items():
        end = name.rpartition(".")[2]
        if end == SCALE and is_dequantised(config) and info.dtype in ("bfloat16", "float16"):
            found[name] = Rewritten(info._replace(dtype="float32"), _widened)
        elif end == BLOCK_SCALE and isinstance(block, list):
            matrix = checkpoint.headers.get(name.removesuffix("_scale_inv"))
            if matrix and (finer := _finer(matrix.shape, info.shape, tuple(cast("list[int]", block)))):
                found[name] = Rewritten(info._replace(shape=tuple(map(len, finer))), partial(_repeated, at=finer))
    return found


def _finer(matrix: Shape, scales: Shape, block: Shape) -> tuple[Sequence[int], ...]:
    """For each row and column of a finer grid, that of the scales; () if the sizes are whole blocks, or do not fit."""
    if not len(matrix) == len(scales) == len(block) == 2 or scales != tuple(map(_blocks, matrix, block)):
        return ()
    if all(count == 1 or size == count * width for size, count, width in zip(matrix, scales, block, strict=True)):
        return ()
    grains = [
        size if count == 1 else gcd(size, width) for size, count, width in zip(matrix, scales, block, strict=True)
    ]
    return tuple(
        [at // width for at in range(0, size, grain)] for size, width, grain in zip(matrix, block, grains, strict=True)
    )


def _blocks(size: int, width: int) -> int:
    return -(-size // width)


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype("float32")


def _repeated(array: np.ndarray, at: tuple[Sequence[int], ...]) -> np.ndarray:
    rows, columns = at
    return array[list(rows)][:, list(columns)]


def _groups(words: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The groups with settings of weights."""
    groups = cast("dict[str, dict[str, Any]]", words.get("config_groups") or {})
    return {name: group for name, group in groups.items() if group.get("weights")}


def _of_weights(group: Mapping[str, Any], format: object) -> dict[str, Any]:
    """A group without the settings of activations. Its format is stated: it would be derived from these."""
    own = group.get("format") or (None if format in _MIXED else format)
    return {**group, "input_activations": None, "output_activations": None, "format": own}


def _replaced(config: Mapping[str, Any], words: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with other quantisation settings, in the place of the present ones."""
    for key in _KEYS:
        if config.get(key):
            return {**config, key: dict(words)}
    return {**config, "text_config": _replaced(config["text_config"], words)}
