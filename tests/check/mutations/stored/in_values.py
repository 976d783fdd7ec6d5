"""Mistakes in the values of parts: those that a compile finds, and those that only saved activations reveal."""

from __future__ import annotations

import numpy as np

from tests.check.mutations.stored.in_headers import ALL, LAYER, case
from tests.check.mutations.stored.spoils import edited, exchanged, inverse, nibbles, words


def reordered(index: np.ndarray) -> np.ndarray:
    """Each group has as many columns as before, and others."""
    return np.roll(index, 1)


def uneven(index: np.ndarray) -> np.ndarray:
    """One column in another group than it was."""
    moved = index.copy()
    moved[np.argmax(moved == 0)] = 1
    return moved


def never_written(array: np.ndarray) -> np.ndarray:
    return np.zeros_like(array)


def one_infinite(scales: np.ndarray) -> np.ndarray:
    """A scale that the dtype it was saved in does not hold."""
    left = scales.copy()
    left[0, 0] = np.inf
    return left


def in_order(words: np.ndarray) -> np.ndarray:
    """Words of outputs 0 … 7 in place of 0, 2, 4, 6, 1, 3, 5, 7."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    codes = (words.view(np.uint32)[..., None] >> shifts & 15)[..., [0, 4, 1, 5, 2, 6, 3, 7]]
    return (codes << shifts).sum(-1, dtype=np.uint32).view(np.int32)


V = "model.layers.{0..1}.self_attn.v_proj."
UP, GATE = f"{LAYER}mlp.up_proj.", f"{LAYER}mlp.gate_proj."
IN_VALUES = (
    case(
        "desc-act",
        "`desc_act` is false, and groups are ordered by activations",
        "llama_gptq_by_activations",
        words(desc_act=False),
        "BU115",
        f"{V}g_idx",
        phase="compile",
    ),
    case(
        "g-idx-range",
        "`g_idx` counts from 1",
        "llama_gptq_by_activations",
        edited("1.mlp.up_proj.g_idx", lambda index: index + 1),
        "BU115",
        f"{UP}weight.index",
        phase="compile",
    ),
    case(
        "g-idx-uneven",
        "`g_idx` assigns one column too many to a group",
        "llama_gptq_by_activations",
        edited("1.mlp.up_proj.g_idx", uneven),
        "BU115",
        f"{UP}weight.index",
        phase="compile",
    ),
    case(
        "zeros-version",
        "Zero points of version 1 under `gptq_v2`",
        "llama_gptq_by_activations",
        words(checkpoint_format="gptq_v2"),
        "BU119",
        ALL,
        phase="compile",
        warns=True,
    ),
    case(
        "fp8-inverse",
        "fp8 scales are saved as their reciprocals",
        "llama_fp8",
        edited("weight_scale", inverse),
        "BU119",
        ALL,
        phase="compile",
        warns=True,
    ),
    case(
        "nvfp4-inverse",
        "The scales of NVFP4 matrices are saved as their reciprocals",
        "llama_nvfp4",
        edited("weight_scale_2", inverse),
        "BU119",
        ALL,
        phase="compile",
        warns=True,
    ),
    case(
        "scales-zero",
        "The scales of one matrix were never written",
        "llama_int4",
        edited("1.mlp.up_proj.weight_scale", never_written),
        "BU134",
        f"{UP}weight.scales",
        phase="compile",
        warns=True,
    ),
    case(
        "scales-infinite",
        "A scale overflowed",
        "llama_int4",
        edited("1.mlp.up_proj.weight_scale", one_infinite),
        "BU133",
        f"{UP}weight.scales",
        phase="compile",
    ),
    case(
        "shape",
        "`weight_shape` is that of another matrix",
        "llama_int4",
        edited("1.mlp.up_proj.weight_shape", lambda size: size[::-1]),
        "BU115",
        f"{UP}weight_shape",
        phase="compile",
    ),
    case(
        "nf4-table",
        "NF4 with the values of another table",
        "llama_nf4",
        edited("weight.quant_map", np.flip),
        "BU115",
        f"{V}weight.quant_map",
        phase="compile",
    ),
    case(
        "bias",
        "An omitted bias is not zero",
        "llama_gptq",
        lambda trial: trial.tensors.update({f"{UP}bias": np.full(96, 0.5, np.float16)}),
        "BU115",
        f"{UP}bias",
        phase="compile",
    ),
    case(
        "scales-exchanged",
        "Two matrices have each other's scales",
        "llama_int4",
        exchanged(f"{UP}weight_scale", f"{GATE}weight_scale"),
        "BU701",
        f"{LAYER}mlp.gate_proj",
        phase="against",
    ),
    case(
        "scales-layer",
        "The scales of a matrix are those of another layer",
        "llama_fp8",
        exchanged("model.layers.0.mlp.down_proj.weight_scale", "model.layers.1.mlp.down_proj.weight_scale"),
        "BU701",
        "model.layers.0.mlp.down_proj",
        phase="against",
    ),
    case(
        "zeros-exchanged",
        "Two matrices have each other's zero points",
        "llama_gptq",
        exchanged(f"{UP}qzeros", f"{GATE}qzeros"),
        "BU701",
        f"{LAYER}mlp.gate_proj",
        phase="against",
    ),
    case(
        "zeros-version-asymmetric",
        "Zero points of version 1 under `gptq_v2`, asymmetric",
        "llama_gptq",
        words(checkpoint_format="gptq_v2"),
        "BU701",
        "model.layers.0.self_attn.q_proj",
        phase="against",
    ),
    case(
        "g-idx-order",
        "`g_idx` is in another order",
        "llama_gptq_by_activations",
        edited("1.mlp.up_proj.g_idx", reordered),
        "BU701",
        f"{LAYER}mlp.up_proj",
        phase="against",
    ),
    case(
        "nibbles",
        "Codes are packed in words in reverse order",
        "llama_int4",
        edited("1.mlp.up_proj.weight_packed", nibbles),
        "BU701",
        f"{LAYER}mlp.up_proj",
        phase="against",
    ),
    case(
        "nibbles-nvfp4",
        "Codes are packed in bytes in reverse order",
        "llama_nvfp4",
        edited("1.mlp.up_proj.weight", nibbles),
        "BU701",
        f"{LAYER}mlp.up_proj",
        phase="against",
    ),
    case(
        "awq-order",
        "AWQ's words have outputs in plain order",
        "llama_awq",
        edited("1.mlp.up_proj.qweight", in_order),
        "BU701",
        f"{LAYER}mlp.up_proj",
        phase="against",
    ),
)
