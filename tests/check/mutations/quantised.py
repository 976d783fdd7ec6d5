"""Quantised payloads: formats that no rule reads, dtypes, block sizes, and configs that declare something else."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from tests.check.mutations.deepseek import NAMES, ROUTED, SHARED
from tests.check.mutations.gpt_oss import mxfp4
from tests.check.mutations.mutation import Mutation, Trial
from tests.check.quantised_forms import FORMS, quantised

SCALE = "weight_scale_inv"
MATRIX = "model.layers.1.self_attn.o_proj.weight"
ALL = "model.layers.{0..2}.self_attn, model.layers.{0..2}.mlp"
EXPERTS = "model.layers.{0..2}.mlp.experts.gate_proj, model.layers.{0..2}.mlp.experts.up_proj"
Spoil = Callable[[Trial], None]


def _stored_as(form: str, *, said: bool = True) -> Spoil:
    """Every matrix as a quantiser stores it; the config states so, or does not."""

    def spoil(trial: Trial) -> None:
        trial.draft.tensors = quantised(trial.tensors, FORMS[form])
        if said:
            trial.config["quantization_config"] = dict(FORMS[form].words)

    return spoil


def _said(form: str) -> Spoil:
    """Plain matrices under a config that says otherwise."""

    def spoil(trial: Trial) -> None:
        trial.config["quantization_config"] = dict(FORMS[form].words)

    return spoil


def _payload(dtype: type, *, only: str = "") -> Spoil:
    """fp8 matrices, or one of them, saved in another dtype; their scales stay."""

    def spoil(trial: Trial) -> None:
        _stored_as("fp8-blocks")(trial)
        for name in [name for name, array in trial.tensors.items() if array.dtype == ml_dtypes.float8_e4m3fn]:
            if only in name:
                trial.change(name, lambda array: np.ones(array.shape, dtype))

    return spoil


def _block(*size: int) -> Spoil:
    """A config with another block size than the scales have."""

    def spoil(trial: Trial) -> None:
        _stored_as("fp8-blocks")(trial)
        trial.config["quantization_config"]["weight_block_size"] = list(size)

    return spoil


def block_of_one(trial: Trial) -> None:
    _stored_as("fp8-blocks")(trial)
    shape = trial.tensors[MATRIX].shape
    trial.tensors[f"{MATRIX}_scale_inv"] = np.ones([-(-size // 8) for size in shape], np.float32)


def scalars(trial: Trial) -> None:
    _stored_as("fp8-blocks")(trial)
    for name in [name for name in trial.tensors if name.endswith(SCALE)]:
        trial.change(name, lambda array: np.ones((), np.float32))


def one_plain(trial: Trial) -> None:
    plain = trial.tensors[MATRIX]
    _stored_as("fp8-blocks")(trial)
    trial.tensors[MATRIX] = plain
    del trial.tensors[f"{MATRIX}_scale_inv"]


def listed_and_quantised(trial: Trial) -> None:
    _stored_as("fp8-blocks")(trial)
    trial.config["quantization_config"]["modules_to_not_convert"] = ["model.layers.0.mlp"]


def byte_scales(trial: Trial) -> None:
    _stored_as("fp8-blocks")(trial)
    for name in [name for name in trial.tensors if name.endswith(SCALE)]:
        trial.change(name, lambda array: np.full(array.shape, 127, np.uint8))


def mxfp4_unsaid(trial: Trial) -> None:
    mxfp4(trial)
    del trial.config["quantization_config"]


def mxfp4_said(trial: Trial) -> None:
    trial.config["quantization_config"] = {"quant_method": "mxfp4"}


def mxfp4_truth_values(trial: Trial) -> None:
    mxfp4(trial)
    for name in [name for name in trial.tensors if name.endswith("gate_up_proj_blocks")]:
        trial.change(name, lambda array: array.astype(bool))


def mxfp4_lost_scales(trial: Trial) -> None:
    mxfp4(trial)
    trial.draft.tensors = {n: a for n, a in trial.tensors.items() if not n.endswith("down_proj_scales")}


def _case(key: str, title: str, base: str, spoil: Spoil, code: str, names: str) -> Mutation:
    return Mutation(
        key=f"quantised-{key}",
        title=title,
        pain=3,
        seen="tried by hand",
        base=base,
        spoil=spoil,
        code=code,
        names=names,
    )


def _unsaid(form: str, title: str, base: str = "llama", names: str = ALL) -> Mutation:
    """A quantised checkpoint whose config does not state it."""
    title = f"The matrices are in {title}, and the config does not state it"
    return _case(form, title, base, _stored_as(form, said=False), "BU137", names)


ATTENTION = [
    f"model.layers.{{0..2}}.self_attn.{x}.weight"
    for x in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "k_b_proj", "v_b_proj", "o_proj")
]
MODULES = ("model.layers.0.mlp", "model.layers.{1..2}.mlp.experts", "model.layers.{1..2}.mlp.shared_experts")
DEEPSEEK = ", ".join([*ATTENTION, *MODULES])
DENSE = [f"model.layers.0.mlp.{x}_proj.weight" for x in NAMES]
EVERY = ", ".join([*ATTENTION, *DENSE, *ROUTED, *SHARED])
QUANTISED = (
    _unsaid("awq", "AWQ"),
    _unsaid("gptq", "GPTQ", "mistral", ALL.replace("2", "1")),
    _unsaid("nf4", "bitsandbytes' NF4"),
    _unsaid("int8", "bitsandbytes' int8"),
    _unsaid("packed", "the packed form of compressed-tensors"),
    _unsaid("naive", "int8 with one scale per row"),
    _unsaid("nvfp4", "NVFP4"),
    _unsaid("fp8", "fp8 with one scale each"),
    _unsaid("fp8-blocks", "fp8 in blocks"),
    _case("said", "The config says GPTQ, and the matrices are plain", "llama", _said("gptq"), "BU137", "quant_method"),
    _case(
        "deepseek-awq",
        "DeepSeek in AWQ, and the config does not state it",
        "deepseek_v3",
        _stored_as("awq", said=False),
        "BU137",
        DEEPSEEK,
    ),
    _case("uint8", "fp8 payloads saved as bytes", "deepseek_v3", _payload(np.uint8), "BU108", EVERY),
    _case("bool", "fp8 payloads saved as booleans", "deepseek_v3", _payload(np.bool_), "BU108", EVERY),
    _case("one-int8", "One fp8 payload saved as int8", "deepseek_v3", _payload(np.int8, only=MATRIX), "BU108", MATRIX),
    _case(
        "one-bf16",
        "One matrix is dequantised, and its scale is left in",
        "deepseek_v3",
        _payload(ml_dtypes.bfloat16, only=MATRIX),
        "BU108",
        MATRIX,
    ),
    _case("e5m2", "The other float8", "deepseek_v3", _payload(ml_dtypes.float8_e5m2), "BU108", EVERY),
    _case("byte-scales", "fp8 scales saved as bytes", "deepseek_v3", byte_scales, "BU108", EVERY),
    _case("block-8", "The config has smaller blocks than the scales", "deepseek_v3", _block(8, 8), "BU102", EVERY),
    _case("block-wide", "The config has blocks of one row", "deepseek_v3", _block(1, 16), "BU102", EVERY),
    _case("block-one", "One matrix has blocks of another size", "deepseek_v3", block_of_one, "BU102", MATRIX),
    _case("scalars", "One scale per matrix instead of blocks", "deepseek_v3", scalars, "BU102", EVERY),
    _case(
        "dequantised", "The config says fp8 of plain matrices", "deepseek_v3", _said("fp8-blocks"), "BU137", DEEPSEEK
    ),
    _case(
        "one-plain", "One matrix is plain, and the config does not list it", "deepseek_v3", one_plain, "BU137", MATRIX
    ),
    _case(
        "listed",
        "The config lists a module that is quantised",
        "deepseek_v3",
        listed_and_quantised,
        "BU137",
        "model.layers.0.mlp",
    ),
    _case(
        "mxfp4-unsaid",
        "In MXFP4, and the config does not state it",
        "gpt_oss",
        mxfp4_unsaid,
        "BU137",
        f"{EXPERTS}, model.layers.{{0..2}}.mlp.experts.down_proj",
    ),
    _case("mxfp4-said", "The config says MXFP4 of plain experts", "gpt_oss", mxfp4_said, "BU137", "quant_method"),
    _case("mxfp4-bool", "MXFP4 blocks saved as booleans", "gpt_oss", mxfp4_truth_values, "BU108", EXPERTS),
    _case(
        "mxfp4-scales",
        "The scales of MXFP4 matrices are missing",
        "gpt_oss",
        mxfp4_lost_scales,
        "BU101",
        "model.layers.{0..2}.mlp.experts.down_proj",
    ),
)
