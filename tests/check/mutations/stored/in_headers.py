"""Mistakes that names, dtypes, shapes and config keys reveal."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.check.mutations.mutation import Mutation, Trial
from tests.check.mutations.stored.bases import stored
from tests.check.mutations.stored.spoils import (
    Spoil,
    added,
    edited,
    renamed,
    weights,
    without,
    words,
)

LAYER = "model.layers.1."
MATRICES = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
EVERY = ", ".join(f"model.layers.{{0..1}}.{x}_proj.weight" for x in MATRICES)
ALL = "model.layers.{0..1}.self_attn, model.layers.{0..1}.mlp"


def case(
    key: str, title: str, base: str, spoil: Spoil, code: str, names: str, *, phase: str = "check", warns: bool = False,
    seen: str = "tried by hand",
) -> Mutation:  # fmt: skip
    return Mutation(
        key=f"stored-{key}", title=title, pain=3, seen=seen, base=base, spoil=spoil, code=code, names=names,
        phase=phase, warns=warns,
    )  # fmt: skip


def one_as_another(trial: Trial) -> None:
    """A layer in GPTQ among layers in AWQ."""
    other = stored("llama_gptq").tensors
    for name in [name for name in trial.tensors if name.startswith(LAYER) and "proj" in name]:
        del trial.tensors[name]
    trial.tensors.update({name: array for name, array in other.items() if name.startswith(LAYER) and "proj" in name})


def one_plain(trial: Trial) -> None:
    """A module that was not converted, and is not on the list."""
    for name in [name for name in trial.tensors if name.startswith(f"{LAYER}self_attn.k_proj")]:
        del trial.tensors[name]
    trial.tensors[f"{LAYER}self_attn.k_proj.weight"] = np.ones((32, 64), np.float32)


def cut_short(trial: Trial) -> None:
    """The file's last thousand bytes are missing."""

    def cut(folder) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])

    trial.on_disk(cut)


def among_two_ranks(trial: Trial) -> None:
    """Rows of 96 inputs are 3 groups of 32."""
    trial.options = ["--tp", "2"]


IN_HEADERS = (
    case(
        "awq-group",
        "The config has another group size than AWQ's scales",
        "llama_awq",
        words(group_size=64),
        "BU102",
        EVERY,
    ),
    case(
        "gptq-zeros",
        "The zero points are of groups of another size",
        "llama_gptq",
        edited("qzeros", lambda zeros: zeros[::2]),
        "BU102",
        EVERY,
    ),
    case(
        "awq-turned",
        "`qweight` is saved transposed",
        "llama_awq",
        edited("qweight", np.transpose),
        "BU137",
        ALL,
    ),
    case(
        "no-g-idx",
        "`desc_act` is true, and `g_idx` is not saved",
        "llama_gptq_by_activations",
        without("g_idx"),
        "BU137",
        ALL,
    ),
    case("bits", "The config states 8 bits, the words have 4", "llama_gptq", words(bits=8), "BU137", ALL),
    case(
        "awq-as-gptq",
        "The config states GPTQ, and the words are AWQ's",
        "llama_awq",
        words(quant_method="gptq"),
        "BU137",
        ALL,
    ),
    case(
        "gptq-as-awq",
        "The config states AWQ, and the words are GPTQ's",
        "llama_gptq",
        words(quant_method="awq"),
        "BU137",
        ALL,
    ),
    case(
        "int4-as-fp8",
        "The config of packed integers states fp8",
        "llama_int4",
        lambda trial: trial.config.update(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"}),
        "BU137",
        ALL,
    ),
    case(
        "mixed",
        "One layer is in GPTQ, the others in AWQ",
        "llama_awq",
        one_as_another,
        "BU137",
        "model.layers.1.self_attn, model.layers.1.mlp",
    ),
    case(
        "not-ignored",
        "A module is plain, and `ignore` misses it",
        "llama_int4",
        one_plain,
        "BU137",
        f"{LAYER}self_attn.k_proj.weight",
    ),
    case(
        "ignored",
        "`ignore` names a module that is quantised",
        "llama_int4",
        words(ignore=["lm_head", "re:.*k_proj"]),
        "BU137",
        "model.layers.{0..1}.self_attn.k_proj.weight",
    ),
    case(
        "no-scale",
        "`weight_scale` of one matrix is missing",
        "llama_fp8",
        without("1.mlp.down_proj.weight_scale"),
        "BU101",
        f"{LAYER}mlp.down_proj.weight",
    ),
    case("no-scales", "No matrix has its `weight_scale`", "llama_fp8", without("weight_scale"), "BU137", ALL),
    case("scale-renamed", "The scales are named `scale`", "llama_fp8", renamed("weight_scale", "scale"), "BU137", ALL),
    case("no-outer", "NVFP4 without the scale of the matrix", "llama_nvfp4", without("weight_scale_2"), "BU137", ALL),
    case(
        "nvfp4-group",
        "NVFP4 whose scales are of groups of 32",
        "llama_nvfp4",
        edited("weight_scale", lambda scales: scales[:, ::2]),
        "BU102",
        EVERY,
    ),
    case(
        "exponents",
        "Exponents of MXFP4 are saved as floats",
        "llama_mxfp4",
        edited("weight_scale", lambda e: e.astype(np.float32)),
        "BU108",
        EVERY,
    ),
    case(
        "fp8-as-bytes",
        "fp8 codes are saved as bytes",
        "llama_fp8",
        edited("proj.weight", lambda codes: codes.view(np.uint8)),
        "BU108",
        EVERY,
    ),
    case(
        "fp8-e5m2",
        "fp8 codes are saved in the other float8",
        "llama_fp8",
        edited("proj.weight", lambda codes: codes.astype(ml_dtypes.float8_e5m2)),
        "BU108",
        EVERY,
    ),
    case(
        "fp8-blocks",
        "The config has blocks, the file one scale per matrix",
        "llama_fp8_tensor",
        words(weight_block_size=[32, 32]),
        "BU102",
        EVERY,
    ),
    case(
        "stale",
        "A float weight is left next to the packed one",
        "llama_int4",
        added({f"{LAYER}mlp.up_proj.weight": np.ones((96, 64), np.float32)}),
        "BU105",
        f"{LAYER}mlp.up_proj.weight",
    ),
    case(
        "int4-group",
        "The config has another group size than the packed integers",
        "llama_int4",
        weights(group_size=64),
        "BU102",
        EVERY,
    ),
    case(
        "int4-bits",
        "The config states 8 bits, the packed integers have 4",
        "llama_int4",
        weights(num_bits=8),
        "BU137",
        ALL,
    ),
    case(
        "symmetric",
        "The config states symmetric, and there are zero points",
        "llama_int4_zeros",
        weights(symmetric=True),
        "BU137",
        ALL,
    ),
    case(
        "unsaid-order",
        "Columns are ordered by activations, and the config does not state it",
        "llama_int4",
        added({f"{LAYER}mlp.up_proj.weight_g_idx": np.repeat(np.arange(2), 32).astype(np.int32)}),
        "BU105",
        f"{LAYER}mlp.up_proj.weight_g_idx",
    ),
    case(
        "nf4-as-int8",
        "The config states 8 bits of bitsandbytes' NF4",
        "llama_nf4",
        words(load_in_4bit=False, load_in_8bit=True),
        "BU137",
        ALL,
    ),
    case("nf4-state", "NF4 without its `quant_state`", "llama_nf4", without("__nf4"), "BU137", ALL),
    case(
        "expert",
        "The scales of one expert are missing",
        "mixtral_int4",
        without("experts.2.w2.weight_scale"),
        "BU101",
        "model.layers.{0..1}.mlp.experts.down_proj",
    ),
    case(
        "mla",
        "The zero points of `kv_b_proj` are missing",
        "deepseek_v3_gptq",
        without("kv_b_proj.qzeros"),
        "BU101",
        ", ".join(f"model.layers.{{0..1}}.self_attn.{x}_b_proj.weight" for x in "kv"),
    ),
    case("cut-short", "The download of the file stopped early", "llama_gptq", cut_short, "BU208", "model.safetensors"),
    case(
        "ranks",
        "Two ranks would cut groups",
        "llama_gptq",
        among_two_ranks,
        "BU136",
        "model.layers.0.mlp.down_proj.weight",
    ),
)
