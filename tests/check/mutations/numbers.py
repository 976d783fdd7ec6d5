"""Values and dtypes: quantisation scales, uninitialised values, a layer of another type."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.check.mutations.mutation import Mutation, Trial

MLP = 'S("layers.{L}.mlp.{x}_proj.{p}")'
BLOCK = 16
SCALE = "weight_scale_inv"


def _quantised(trial: Trial) -> None:
    """fp8 matrices with a scale for each block of 16 by 16, and the rule that reads both: a sound checkpoint."""
    for name in [name for name in trial.tensors if ".mlp." in name]:
        payload, scales = _in_blocks(trial.tensors[name])
        trial.tensors.update({name: payload, name.replace("weight", SCALE): scales})
    scales = f'S("layers.{{L}}.mlp.{{x}}_proj.{SCALE}", "o i")'
    trial.edit_adapter(MLP, f'dequant({MLP[:-1]}, "out in"), {scales}, ({BLOCK}, {BLOCK}))')
    trial.edit_adapter("import S\n", "import S\nfrom bringup.adapters.algebra.values import dequant\n")


def _in_blocks(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """fp8 payload, and for each block the power of two that brings its largest value below 448, fp8's largest."""
    out, m = array.shape
    blocks = array.reshape(out // BLOCK, BLOCK, m // BLOCK, BLOCK)
    scales = np.exp2(np.ceil(np.log2(np.abs(blocks).max((1, 3), keepdims=True) / 448)))
    payload = (blocks / scales).reshape(out, m).astype(ml_dtypes.float8_e4m3fn)
    return payload, scales[:, 0, :, 0].astype(np.float32)


def bare_cast(trial: Trial) -> None:
    """One matrix in fp8, whose scale got lost."""
    trial.change("model.layers.1.mlp.down_proj.weight", lambda array: _in_blocks(array)[0])


def unknown_scales(trial: Trial) -> None:
    _quantised(trial)
    trial.adapter = ""


def lost_scale(trial: Trial) -> None:
    _quantised(trial)
    del trial.tensors[f"model.layers.1.mlp.down_proj.{SCALE}"]


def renamed_scale(trial: Trial) -> None:
    _quantised(trial)
    trial.rename(lambda name: name.replace(f"2.mlp.up_proj.{SCALE}", "2.mlp.up_proj.weight_scale"))


def scales_as_bytes(trial: Trial) -> None:
    """e8m0 exponents that were saved as the bytes they are: 127 means 1."""
    _quantised(trial)
    for name in [name for name in trial.tensors if name.endswith(SCALE)]:
        trial.change(name, lambda array: (np.log2(array) + 127).astype(np.uint8))


def never_written(trial: Trial) -> None:
    def new(array: np.ndarray) -> np.ndarray:
        left = array.copy()
        left[3:5] = np.nan
        return left

    trial.change("model.layers.2.self_attn.o_proj.weight", new)


def zeros(trial: Trial) -> None:
    trial.change("transformer.h.1.mlp.c_fc.weight", np.zeros_like)


def wide_expert(trial: Trial) -> None:
    """One expert in float32 among float16 ones: to be stacked, the others are widened or this one is rounded."""
    for name, array in trial.tensors.items():
        trial.tensors[name] = array.astype(np.float16) if array.dtype == np.float32 else array
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    trial.change(name, lambda array: array.astype(np.float32))
    trial.config["dtype"] = "float16"


def integer(trial: Trial) -> None:
    trial.change("transformer.h.0.mlp.c_fc.weight", lambda array: array.astype(np.int8))


ALL_MLP = ", ".join(f"model.layers.{{0..2}}.mlp.{x}_proj.weight" for x in ("gate", "up", "down"))

NUMBERS = (
    Mutation(
        key="fp8-without-scale",
        title="One matrix is fp8, and its scale is missing",
        pain=3,
        seen="vllm#57108",
        base="llama",
        spoil=bare_cast,
        code="BU108",
        names="model.layers.1.mlp.down_proj.weight",
    ),
    Mutation(
        key="unknown-scales",
        title="fp8 matrices with scales that no rule reads",
        pain=3,
        seen="abliterix#93, llama.cpp#12341",
        base="llama",
        spoil=unknown_scales,
        code="BU137",
        names="model.layers.{0..2}.mlp",
    ),
    Mutation(
        key="lost-scale",
        title="One `weight_scale_inv` is missing",
        pain=3,
        seen="vllm#34930, vllm#45212",
        base="llama",
        spoil=lost_scale,
        code="BU101",
        names="model.layers.1.mlp.down_proj.weight",
    ),
    Mutation(
        key="renamed-scale",
        title="One `weight_scale_inv` is named `weight_scale`",
        pain=3,
        seen="llama.cpp#12644",
        base="llama",
        spoil=renamed_scale,
        code="BU101",
        names="model.layers.2.mlp.up_proj.weight",
    ),
    Mutation(
        key="scales-as-bytes",
        title="e8m0 scales are stored as bytes",
        pain=3,
        seen="vllm#51946",
        base="llama",
        spoil=scales_as_bytes,
        code="BU108",
        names=ALL_MLP,
    ),
    Mutation(
        key="never-written",
        title="Two rows of a matrix are NaN",
        pain=1,
        seen="vllm#45212, vllm#54444",
        base="llama",
        spoil=never_written,
        code="BU133",
        names="model.layers.2.self_attn.o_proj.weight",
        phase="compile",
    ),
    Mutation(
        key="zeros",
        title="A matrix is all zeros",
        pain=1,
        seen="vllm#54189",
        base="gpt2",
        spoil=zeros,
        code="BU134",
        names="transformer.h.1.mlp.c_fc.weight",
        phase="compile",
        warns=True,
    ),
    Mutation(
        key="wide-expert",
        title="One expert is float32 among float16 ones",
        pain=8,
        seen="llm-compressor#3037, sglang-jax#276",
        base="mixtral",
        spoil=wide_expert,
        code="BU135",
        names="model.layers.1.mlp.experts.down_proj",
        warns=True,
    ),
    Mutation(
        key="integer",
        title="An integer matrix instead of the declared float",
        pain=3,
        seen="stable-diffusion.cpp#1898",
        base="gpt2",
        spoil=integer,
        code="BU108",
        names="transformer.h.0.mlp.c_fc.weight",
    ),
)
