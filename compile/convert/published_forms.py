"""The published formats of weights that are quantised while they are loaded: tensors, and `quantization_config`.

Sources: the package compressed-tensors 0.20 (`compressors/`, `quantization/quant_config.py`), which llm-compressor and
transformers use, for int8, int4, fp8 and mxfp4; bitsandbytes 0.50 (`QuantState.as_dict` of functional.py) for nf4;
DeepSeek-V3's README_WEIGHTS.md and transformers' `FineGrainedFP8Config` for fp8 in blocks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bringup.adapters.apply.quantise import Recipe
from bringup.graphs.core.form import count
from bringup.spec import Shape

if TYPE_CHECKING:
    import numpy as np

HALF = 8  # the code of 0 in words of unsigned 4-bit codes
EACH = 8  # codes in a word
STATE = "weight.quant_state.bitsandbytes__nf4"
Parts = Mapping[str, tuple[str, Shape]]


@dataclass(frozen=True, slots=True)
class PublishedForm:
    """`parts` returns dtype and shape of the tensors for a matrix [out, in], by suffixes of their names; `arrays`
    returns these tensors for its codes and scales; `words` returns the `quantization_config` for the names of the
    modules that are not quantised. `any_order`: the format also supports a matrix [in, out].
    """

    parts: Callable[[Shape], Parts]
    arrays: Callable[[np.ndarray, np.ndarray], Mapping[str, np.ndarray]]
    words: Callable[[Sequence[str]], Mapping[str, Any]]
    any_order: bool = False


def published_form(recipe: Recipe) -> PublishedForm:
    """The published format of a recipe."""
    if recipe.name == "int8":
        return _plain(recipe, "int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"})
    if recipe.name == "fp8":
        return _plain(recipe, "float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"})
    if recipe.name == "fp8-block":
        return _blocks(recipe)
    if recipe.name == "mxfp4":
        return _mxfp4(recipe)
    if recipe.name == "nf4":
        return _nf4(recipe)
    return _int4(recipe)


def _plain(recipe: Recipe, format: str, weights: Mapping[str, Any]) -> PublishedForm:
    def parts(shape: Shape) -> Parts:
        return {"weight": (recipe.codes, shape), "weight_scale": ("float32", (shape[0], 1))}

    def arrays(codes: np.ndarray, scales: np.ndarray) -> Mapping[str, np.ndarray]:
        return {"weight": codes, "weight_scale": scales}

    return PublishedForm(parts, arrays, lambda names: _compressed(format, weights, names))


def _blocks(recipe: Recipe) -> PublishedForm:
    block = [recipe.rows, recipe.along]

    def parts(shape: Shape) -> Parts:
        blocks = tuple(count(size, of) for size, of in zip(shape, block, strict=True))
        return {"weight": (recipe.codes, shape), "weight_scale_inv": ("float32", blocks)}

    def arrays(codes: np.ndarray, scales: np.ndarray) -> Mapping[str, np.ndarray]:
        return {"weight": codes, "weight_scale_inv": scales}

    def words(names: Sequence[str]) -> Mapping[str, Any]:
        stated = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": block}
        return stated | {"modules_to_not_convert": [*names]}

    return PublishedForm(parts, arrays, words, any_order=True)


def _int4(recipe: Recipe) -> PublishedForm:
    group = recipe.along

    def parts(shape: Shape) -> Parts:
        out, columns = shape
        packed, scales = (out, count(columns, EACH)), (out, columns // group)
        return {
            "weight_packed": ("int32", packed),
            "weight_scale": ("float32", scales),
            "weight_shape": ("int64", (2,)),
        }

    def arrays(codes: np.ndarray, scales: np.ndarray) -> Mapping[str, np.ndarray]:
        import numpy as np

        out, columns = codes.shape
        padded = np.zeros((out, count(columns, EACH) * EACH), np.uint32)
        padded[:, :columns] = codes.astype(np.int8) + HALF
        shifts = np.arange(0, 4 * EACH, 4, dtype=np.uint32)
        packed = np.bitwise_or.reduce(padded.reshape(out, -1, EACH) << shifts, axis=-1).view(np.int32)
        return {"weight_packed": packed, "weight_scale": scales, "weight_shape": np.array([out, columns], np.int64)}

    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}
    return PublishedForm(parts, arrays, lambda names: _compressed("pack-quantized", weights, names))


def _mxfp4(recipe: Recipe) -> PublishedForm:
    def parts(shape: Shape) -> Parts:
        out, columns = shape
        return {
            "weight_packed": ("uint8", (out, columns // 2)),
            "weight_scale": ("uint8", (out, columns // recipe.along)),
        }

    def arrays(codes: np.ndarray, scales: np.ndarray) -> Mapping[str, np.ndarray]:
        import numpy as np

        bits = codes.view(np.uint8) & 15
        return {"weight_packed": bits[:, 0::2] | bits[:, 1::2] << 4, "weight_scale": scales.view(np.uint8)}

    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": recipe.along}
    return PublishedForm(parts, arrays, lambda names: _compressed("mxfp4-pack-quantized", weights, names))


def _nf4(recipe: Recipe) -> PublishedForm:
    def parts(shape: Shape) -> Parts:
        values = math.prod(shape)
        return {
            "weight": ("uint8", (values // 2, 1)),
            "weight.absmax": ("float32", (values // recipe.along,)),
            "weight.quant_map": ("float32", (len(recipe.table),)),
            STATE: ("uint8", (len(state(shape)),)),
        }

    def state(shape: Shape) -> bytes:
        words = {"quant_type": recipe.name, "blocksize": recipe.along, "dtype": "float32", "shape": [*shape]}
        return json.dumps(words).encode()

    def arrays(codes: np.ndarray, scales: np.ndarray) -> Mapping[str, np.ndarray]:
        import numpy as np

        flat = codes.astype(np.uint8).reshape(-1, 2)
        return {
            "weight": flat[:, :1] << 4 | flat[:, 1:],
            "weight.absmax": scales.reshape(-1),
            "weight.quant_map": np.array(recipe.table, np.float32),
            STATE: np.frombuffer(state(codes.shape), np.uint8),
        }

    def words(names: Sequence[str]) -> Mapping[str, Any]:
        return {
            "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": False, "bnb_4bit_compute_dtype": "float32",
            "llm_int8_skip_modules": [*names],
        }  # fmt: skip

    return PublishedForm(parts, arrays, words)


def _compressed(format: str, weights: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    # The group states the format too: for a group that does not, compressed-tensors infers one from its weights
    # (`infer_module_format`), and for int8 it infers `pack-quantized`.
    group = {
        "targets": ["Linear"],
        "format": format,
        "weights": {"dynamic": False, "symmetric": True, **weights},
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": [*names],
    }  # fmt: skip
