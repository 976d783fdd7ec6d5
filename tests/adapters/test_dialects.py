"""Families in GGUF: each file checks, compiles and gives the tokens of the transformers model it was made from."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.planning.expected_headers import published
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.check.checker import check_job
from bringup.compile.job import open_job
from bringup.graphs.registry import FAMILIES
from tests.adapters import gguf_families, llama_cpp
from tests.adapters.gguf_files import hyperparameters
from tests.adapters.written import raises
from tests.models import parity, test_exaone, test_qwen

ARCH = gguf.MODEL_ARCH
SIZES: dict[str, Any] = {
    "vocab_size": 131, "num_hidden_layers": 2, "max_position_embeddings": 512, "hidden_size": 48,
    "intermediate_size": 64, "num_attention_heads": 6, "num_key_value_heads": 2,
}  # fmt: skip
SQUARE = SIZES | {"num_key_value_heads": 6}  # the shapes of q and k do not tell whose heads they have
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
FACTORS = [1.0 + 0.25 * pair for pair in range(3)]
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
    "short_factor": FACTORS, "long_factor": [2 * factor for factor in FACTORS],
}  # fmt: skip
LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA: dict[str, Any] = {"head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 9}
CASES: dict[str, tuple[gguf.MODEL_ARCH, Any]] = {
    "gemma2": (ARCH.GEMMA2, Gemma2Config(**SIZES, **GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    "gemma3": (ARCH.GEMMA3, Gemma3TextConfig(**SIZES | {"num_hidden_layers": 7}, **GEMMA)),
    "gemma3-linear": (
        ARCH.GEMMA3, Gemma3TextConfig(**SIZES | {"num_hidden_layers": 6}, **GEMMA, rope_parameters=LINEAR),
    ),
    "llama": (ARCH.LLAMA, LlamaConfig(**SIZES)),
    "llama-square-tied": (
        ARCH.LLAMA, LlamaConfig(**SQUARE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    ),
    "olmo2": (ARCH.OLMO2, Olmo2Config(**SIZES, eos_token_id=2)),
    "olmo2-square-tied-biases": (
        ARCH.OLMO2, Olmo2Config(**SQUARE, tie_word_embeddings=True, attention_bias=True, eos_token_id=2),
    ),
    "mixtral": (ARCH.LLAMA, MixtralConfig(**SIZES, num_local_experts=5, num_experts_per_tok=2)),
    "mixtral-square": (ARCH.LLAMA, MixtralConfig(**SQUARE, num_local_experts=4, num_experts_per_tok=3, head_dim=12)),
    "qwen2": (ARCH.QWEN2, Qwen2Config(**SIZES)),
    "qwen2-tied-yarn": (ARCH.QWEN2, Qwen2Config(**SQUARE, tie_word_embeddings=True, rope_parameters=YARN)),
    "qwen3": (ARCH.QWEN3, Qwen3Config(**SIZES, head_dim=12)),
    "qwen3-square-tied": (ARCH.QWEN3, Qwen3Config(**SQUARE, head_dim=8, tie_word_embeddings=True, attention_bias=True)),
    "qwen3-moe": (
        ARCH.QWEN3MOE,
        Qwen3MoeConfig(**SIZES, head_dim=12, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48,
                       norm_topk_prob=True),
    ),
    "qwen2-moe": (
        ARCH.QWEN2MOE,
        Qwen2MoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48,
                       shared_expert_intermediate_size=96, norm_topk_prob=False),
    ),
    "phi3": (ARCH.PHI3, Phi3Config(**SIZES, original_max_position_embeddings=512, sliding_window=9, pad_token_id=0)),
    "phi3-longrope": (
        ARCH.PHI3,
        Phi3Config(**SQUARE, original_max_position_embeddings=16, rope_parameters=LONGROPE, pad_token_id=0),
    ),
}  # fmt: skip


def words(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
    """What the converters of single families add."""
    if writer.arch == "llama":
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(
            config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        )
    if writer.arch in ("qwen2moe", "qwen3moe"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if writer.arch == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if writer.arch == "phi3":
        phi3(writer, config)
    if writer.arch in ("gemma2", "gemma3"):
        gemma(writer, config)


def gemma(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
    """`Gemma2Model.set_gguf_parameters`, and that of `Gemma3Model`."""
    writer.add_sliding_window(config["sliding_window"])
    if writer.arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        return
    rope = config["rope_parameters"]["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def one_plus(tensors: llama_cpp.Tensors, config: llama_cpp.Config) -> llama_cpp.Tensors:
    """The norms of Gemma: `Gemma2Model.modify_tensors`."""
    return {name: array + 1 if name.endswith("norm.weight") else array for name, array in tensors.items()}


def without_ones(tensors: llama_cpp.Tensors, config: llama_cpp.Config) -> llama_cpp.Tensors:
    """What `ggml_n_dims` counts, and so files of llama-quantize: no outer dimensions of 1."""
    return {name: array[0] if array.shape[0] == 1 else array for name, array in tensors.items()}


TENSORS = {
    ARCH.QWEN2MOE: without_ones,  # transformers reads no others
    ARCH.LLAMA: llama_cpp.all_in_pairs,
    ARCH.GEMMA2: one_plus,
    ARCH.GEMMA3: one_plus,
}


def phi3(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
    """`Phi3MiniModel.set_gguf_parameters` and its `generate_extra_tensors`."""
    original, rope = config["original_max_position_embeddings"], config["rope_parameters"]
    part = rope.get("partial_rotary_factor", 1.0)
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_dimension_count(int(part * config["hidden_size"]) // config["num_attention_heads"])
    writer.add_sliding_window(config["sliding_window"] or 0)
    if rope["rope_type"] == "longrope":
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))


def gguf_of(name: str, tmp_path: Path, **options: Any) -> tuple[Path, Path]:
    """A checkpoint that transformers saved, and its GGUF file."""
    arch, config = CASES[name]
    folder = parity.save_checkpoint(config, tmp_path / "transformers")
    tensors = {"tensors": TENSORS[arch]} if arch in TENSORS else {}
    return folder, llama_cpp.convert(folder, tmp_path / "m.gguf", arch, **({"words": words} | tensors | options))


@pytest.mark.parametrize("name", CASES)
def test_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    llama_cpp.assert_same_logits(*gguf_of(name, tmp_path))


# A dialect gives a config and tensors, whose logits are above; what is compiled from them does not know of GGUF. One
# of each way that tensors are read: as they are, as a stack of experts, as sums, with tables of rope.
COMPILED = ["qwen2", "mixtral", "gemma2", "phi3-longrope"]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    folder, file = gguf_of(name, tmp_path)
    llama_cpp.assert_same_tokens(open_job(None, str(file)), folder, tmp_path / "bundle")


def test_mixtral_with_a_tensor_an_expert(tmp_path: Path) -> None:
    """The layout of files before April 2024."""
    folder, file = gguf_of("mixtral", tmp_path, stack=False)
    assert "blk.1.ffn_down.4.weight" in open_checkpoint(str(file)).headers
    llama_cpp.assert_same_logits(folder, file)


def without_down(tensors: llama_cpp.Tensors, config: llama_cpp.Config) -> llama_cpp.Tensors:
    """Layer 1's experts lack their last matrix."""
    last = (".w2.", ".down_proj.")
    return {name: a for name, a in tensors.items() if "layers.0" in name or not any(x in name for x in last)}


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_a_missing_matrix_of_experts_is_one_finding(name: str, tmp_path: Path) -> None:
    _, file = gguf_of(name, tmp_path, tensors=without_down)
    (finding,) = check_job(open_job(None, str(file))).findings
    assert finding.code == "BU101"
    assert finding.sources == ("blk.1.ffn_down_exps.weight",)


def test_quantised_experts(tmp_path: Path) -> None:
    """Blocks are dequantised as gguf-py does it, a whole stack of experts at once."""
    _, file = gguf_of("qwen3-moe", tmp_path, kind=gguf.GGMLQuantizationType.Q8_0)
    job = open_job(None, str(file))
    assert check_job(job).findings == []
    arrays = materialise(job.plan, job.checkpoint)["model.layers.1.mlp.experts.up_proj"]
    truth = next(t for t in gguf.GGUFReader(file).tensors if t.name == "blk.1.ffn_up_exps.weight")
    assert np.array_equal(arrays, gguf.dequantize(truth.data, truth.tensor_type).reshape(arrays.shape))


# What gguf 0.19 does not list, and an architecture of the same tensors that it does.
ALIKE = {"deepseek32": gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.GLM_DSA]}


@pytest.mark.parametrize("family", [family.name for family in FAMILIES if family.dialect])
def test_the_names_of_a_dialect_are_those_of_gguf_py(family: str) -> None:
    """Every tensor that a table reads is one that llama.cpp's library lists for its architecture."""
    name = family.replace("_", "-")
    case = {"gemma4": "gemma4-experts-untied"}.get(name, name)
    raw = (CASES[name][1] if name in CASES else gguf_families.CASES[case].config).to_dict()
    published_words = {"exaone": test_exaone.words, "qwen": test_qwen.words}.get(name, dict)
    job = open_job(family, "dummy", config=published_words(raw))
    dialect = job.family.load("dialect")
    called = {ALIKE.get(name, name) for name in dialect.names}
    listed = {
        gguf.TENSOR_NAMES[tensor].format(bid=0)
        for arch, name in gguf.MODEL_ARCH_NAMES.items()
        if name in called
        for tensor in gguf.MODEL_TENSORS[arch]
    }
    names = published(job.graph.signature(), dialect.table(job.graph.config))
    first = {name for name in names if re.match(r"(?!blk\.[2-9])", name)}
    assert {re.sub(r"\.(weight|bias|scale)$", "", name).replace("blk.1.", "blk.0.") for name in first} <= listed


@pytest.mark.parametrize(
    ("arch", "model", "said"),
    [
        ("internlm", None, "`internlm` has no GGUF dialect.*adapters/dialects/internlm.py"),
        ("gemma3", "llava", "`llava` has no GGUF dialect"),
        ("lfm2moe", None, "`lfm2_moe` does not support.*reads other files"),  # without `expert_gating_func`
        ("qwen2", "llama", "dialect of `llama` reads `llama`.*did you mean the model `qwen2`"),
        ("llama", "mixtral", "dialect of `mixtral` reads others of that name.*did you mean the model `llama`"),
    ],
)
def test_a_file_without_a_dialect_is_one_error(tmp_path: Path, arch: str, model: str | None, said: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", arch)
    hyperparameters(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with raises("BU227", f"(?s){said}"):
        open_job(model, str(tmp_path / "m.gguf"))


def test_an_architecture_of_no_family(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2vl")
    hyperparameters(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with raises("BU125", "`qwen2vl`.*did you mean `qwen2`"):
        open_job(None, str(tmp_path / "m.gguf"))


def test_a_config_does_not_make_up_for_a_dialect(tmp_path: Path) -> None:
    """Transformers' names are not in the file, and the table has no others."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "internlm")
    writer.add_tensor("token_embd.weight", np.zeros((50257, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with raises("BU227", "`internlm` has no GGUF dialect"):
        open_job("internlm", str(tmp_path / "m.gguf"), config=SIZES)


def test_what_a_dialect_has_no_word_for_is_refused(tmp_path: Path) -> None:
    def scaled(writer: gguf.GGUFWriter, config: llama_cpp.Config) -> None:
        writer.add_logit_scale(0.5)

    _, file = gguf_of("qwen2", tmp_path, words=scaled)
    assert [finding.parameter for finding in open_job(None, str(file)).findings] == ["qwen2.logit_scale"]


def test_defaults_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """Not those that transformers has for an absent key: 32 key heads, 128 channels."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3")
    hyperparameters(writer)
    writer.add_vocab_size(10)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    config = open_checkpoint(str(tmp_path / "m.gguf")).config
    said = {key: config[key] for key in ("num_key_value_heads", "head_dim", "rope_theta")}
    assert said == {"num_key_value_heads": 4, "head_dim": 16, "rope_theta": 10000.0}
