"""Families for which llama.cpp's converter changes more than names; each function does what the converter does.

A function has the name of the class of `convert_hf_to_gguf.py` that it reproduces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import (
    BloomConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Glm4MoeConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    Qwen2Config,
)
from transformers.models.deepseek_v32 import DeepseekV32Config

from tests.adapters import llama_cpp
from tests.adapters.llama_cpp import Config, Tensors
from tests.models import parity
from tests.models.test_deepseek_v3 import save_biased

ARCH = gguf.MODEL_ARCH
Words = Callable[[gguf.GGUFWriter, Config], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`tensors`, `words`, `base` and `called` as `llama_cpp.convert` takes them; `save` as `parity.save_checkpoint`."""

    arch: gguf.MODEL_ARCH
    config: Any
    tensors: Callable[[Tensors, Config], Tensors] = lambda tensors, config: tensors
    words: Words = lambda writer, config: None
    base: Words | None = None
    save: Callable[[Any, Path], Path] = parity.save_checkpoint
    called: str = ""


def write(case: Case, folder: Path, **options: Any) -> tuple[Path, Path]:
    """A checkpoint that transformers saved, and its GGUF file."""
    saved = case.save(case.config, folder / "transformers")
    given: dict[str, Any] = {"tensors": case.tensors, "words": case.words, "base": case.base, "called": case.called}
    given |= options
    return saved, llama_cpp.convert(saved, folder / "m.gguf", case.arch, **given)


def gpt2(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])


def transposed(tensors: Tensors, config: Config) -> Tensors:
    """`GPT2Model.modify_tensors`."""
    conv1d = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {name: np.ascontiguousarray(a.T) if name.endswith(conv1d) else a for name, a in tensors.items()}


def bloom(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_context_length(config.get("seq_length", config["hidden_size"]))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(4 * config["hidden_size"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_head_count_kv(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])


def gpt_neox(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    part, width = config["rope_parameters"]["partial_rotary_factor"], config["hidden_size"]
    writer.add_rope_dimension_count(int(part * (width // config["num_attention_heads"])))
    writer.add_head_count(config["num_attention_heads"])
    writer.add_parallel_residual(config["use_parallel_residual"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])


def one_after_another(tensors: Tensors, config: Config) -> Tensors:
    """q, k and v of `BloomModel.modify_tensors` and `GPTNeoXModel.modify_tensors`, head by head."""
    heads = config.get("n_head") or config["num_attention_heads"]
    out: Tensors = {}
    for name, array in tensors.items():
        if "query_key_value" not in name:
            out[name.removeprefix("transformer.")] = array
            continue
        width = len(array) // heads // 3
        rows = [head * 3 * width + part * width + i for part in range(3) for head in range(heads) for i in range(width)]
        out[name.removeprefix("transformer.")] = array[rows]
    return out


def glm(writer: gguf.GGUFWriter, config: Config) -> None:
    """`Glm4MoeModel.set_gguf_parameters`."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(int(width * config["rope_parameters"]["partial_rotary_factor"]))
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_nextn_predict_layers(0)
    of_experts(writer, config)


def of_experts(writer: gguf.GGUFWriter, config: Config) -> None:
    """What the converters of GLM-4.5 and DeepSeek write alike."""
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if config.get("norm_topk_prob"):
        writer.add_expert_weights_norm(True)


def deepseek(writer: gguf.GGUFWriter, config: Config) -> None:
    """`DeepseekV2Model.set_gguf_parameters`: a latent row is the one key head."""
    of_experts(writer, config)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_kv_lora_rank(rank)
    set_key(writer, "attention.head_count_kv", 1)
    set_key(writer, "attention.key_length", rank + turned)
    set_key(writer, "attention.value_length", rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + turned)
    writer.add_value_length_mla(config["v_head_dim"])
    of_rope(writer, config)


def deepseek_of_2024(writer: gguf.GGUFWriter, config: Config) -> None:
    """As of llama.cpp before pull request 12801: `kv_b` is whole, and a head's lengths are its own."""
    of_experts(writer, config)
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    set_key(writer, "attention.key_length", config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    set_key(writer, "attention.value_length", config["v_head_dim"])
    of_rope(writer, config)


def of_rope(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    if all_dim := config["rope_parameters"].get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * all_dim)


def v3(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)  # `scoring_func` of the published config
    deepseek(writer, config)


def v32(writer: gguf.GGUFWriter, config: Config) -> None:
    """`DeepseekV32Model.set_gguf_parameters`."""
    v3(writer, config)
    writer.add_nextn_predict_layers(0)
    writer.add_indexer_head_count(config["index_n_heads"])
    writer.add_indexer_key_length(config["index_head_dim"])
    writer.add_indexer_top_k(config["index_topk"])


def set_key(writer: gguf.GGUFWriter, key: str, value: int) -> None:
    """A key that `hyperparameters` may have written: llama.cpp's converter changes the config before."""
    name = f"{writer.arch}.{key}"
    writer.kv_data[0].pop(name, None)
    writer.add_uint32(name, value)


def split_kv_b(tensors: Tensors, config: Config) -> Tensors:
    """`DeepseekV2Model.modify_tensors`, index by index."""
    h, n, v = config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"]
    out: Tensors = {}
    for name, array in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            out[name] = array
            continue
        heads = [array[head * (n + v) : (head + 1) * (n + v)] for head in range(h)]
        out[name.replace("kv_b_proj", "k_b_proj")] = np.stack([head[:n].T for head in heads])
        out[name.replace("kv_b_proj", "v_b_proj")] = np.stack([head[n:] for head in heads])
    return out


def gpt_oss(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])


def apart(tensors: Tensors, config: Config) -> Tensors:
    """`GptOssModel.modify_tensors`: matrices transposed, gate and up by turns, a `.weight` for the sinks."""
    out: Tensors = {}
    for name, array in tensors.items():
        if name.endswith("sinks"):
            out[f"{name}.weight"] = array
        elif ".experts." not in name:
            out[name] = array
        else:
            kind = "bias" if name.endswith("_bias") else "weight"
            rows = array if kind == "bias" else array.swapaxes(1, 2)
            base = name.removesuffix("_bias")
            if base.endswith("gate_up_proj"):
                out[base.replace("gate_up_proj", f"gate_proj.{kind}")] = rows[:, ::2]
                out[base.replace("gate_up_proj", f"up_proj.{kind}")] = rows[:, 1::2]
            else:
                out[f"{base}.{kind}"] = rows
    return out


def qwen(writer: gguf.GGUFWriter, config: Config) -> None:
    """`QwenModel.set_gguf_parameters`, in the published config's sizes."""
    width = config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(2 * config["intermediate_size"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(width)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def fused(tensors: Tensors, config: Config) -> Tensors:
    """q, k and v of Qwen2 as Qwen 1 has them: one after another in one tensor."""
    out = {name: array for name, array in tensors.items() if not any(f".{x}_proj." in name for x in "qkv")}
    for name in [name for name in tensors if ".q_proj." in name]:
        whole = name.replace("model.layers", "transformer.h").replace("self_attn.q_proj", "attn.c_attn")
        out[whole] = np.concatenate([tensors[name.replace("q_proj", f"{x}_proj")] for x in "qkv"])
    return out


def exaone(writer: gguf.GGUFWriter, config: Config) -> None:
    width = config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(width)
    rope = config["rope_parameters"]
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", np.array(list(llama3_factors(rope, width)), np.float32))


def llama3_factors(rope: Config, width: int) -> Iterator[float]:
    """`generate_extra_tensors`: what llama3 rope divides each frequency by."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    for index in range(0, width, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / width)
        turns = rope["original_max_position_embeddings"] / wavelength
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        yield 1 / ((1 - share) / factor + share)


SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 512, "num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
OF_V2 = YARN | {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32.0, "beta_slow": 1.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
MLA: dict[str, Any] = {
    "hidden_size": 42, "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 3,
    "num_key_value_heads": 3, "q_lora_rank": 20, "kv_lora_rank": 18, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6,
    "v_head_dim": 14, "first_k_dense_replace": 1, "n_routed_experts": 12, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "moe_intermediate_size": 16, "n_group": 4, "topk_group": 2,
}  # fmt: skip
SQUARE_MLA = MLA | {"qk_nope_head_dim": 14, "kv_lora_rank": 14}  # the shape of k_b does not tell its axes apart
CASES: dict[str, Case] = {
    "gpt2": Case(
        arch=ARCH.GPT2, base=gpt2, tensors=transposed,
        config=GPT2Config(vocab_size=149, n_positions=128, n_layer=2, n_head=3, n_embd=48),
    ),
    "bloom": Case(
        arch=ARCH.BLOOM, base=bloom, tensors=one_after_another,
        config=BloomConfig(vocab_size=131, hidden_size=40, n_layer=2, n_head=5, seq_length=128),
    ),
    "gpt-neox": Case(
        arch=ARCH.GPTNEOX, base=gpt_neox, tensors=one_after_another,
        config=GPTNeoXConfig(**SIZES, hidden_size=112, intermediate_size=66, num_attention_heads=7,
                             hidden_act="gelu_fast"),
    ),
    "gpt-neox-one-after-the-other": Case(
        arch=ARCH.GPTNEOX, base=gpt_neox, tensors=one_after_another,
        config=GPTNeoXConfig(
            **SIZES, hidden_size=36, intermediate_size=50, num_attention_heads=3, use_parallel_residual=False,
            hidden_act="gelu_fast", tie_word_embeddings=True, attention_bias=False,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        ),
    ),
    "deepseek-v2": Case(
        arch=ARCH.DEEPSEEK2, words=deepseek, tensors=split_kv_b,
        config=DeepseekV2Config(**SIZES | MLA, topk_method="group_limited_greedy", routed_scaling_factor=16.0,
                                rope_parameters=OF_V2),
    ),
    "deepseek-v2-lite-tied": Case(
        arch=ARCH.DEEPSEEK2, words=deepseek, tensors=split_kv_b,
        config=DeepseekV2Config(**SIZES | SQUARE_MLA | {"q_lora_rank": None, "n_group": None, "topk_group": None},
                                tie_word_embeddings=True),
    ),
    "deepseek-v2-of-2024": Case(
        arch=ARCH.DEEPSEEK2, words=deepseek_of_2024,
        config=DeepseekV2Config(**SIZES | SQUARE_MLA | {"n_group": None, "topk_group": None}, rope_parameters=OF_V2),
    ),
    "deepseek-v3": Case(
        arch=ARCH.DEEPSEEK2, words=v3, tensors=split_kv_b, save=save_biased,
        config=DeepseekV3Config(**SIZES | MLA, rope_parameters=OF_V2 | {"mscale": 1.0, "mscale_all_dim": 1.0}),
    ),
    "deepseek-v3-no-dense-layer": Case(
        arch=ARCH.DEEPSEEK2, words=v3, tensors=split_kv_b, save=save_biased,
        config=DeepseekV3Config(**SIZES | SQUARE_MLA | {"first_k_dense_replace": 0}, norm_topk_prob=False,
                                routed_scaling_factor=1.0),
    ),
    "deepseek-v32": Case(  # gguf 0.19 lists no DEEPSEEK32; GLM_DSA's tensors have the same names
        arch=ARCH.GLM_DSA, called="deepseek32", words=v32, tensors=split_kv_b, save=save_biased,
        config=DeepseekV32Config(
            **SIZES | MLA, index_n_heads=13, index_head_dim=10, index_topk=7,
            rope_parameters=OF_V2 | {"mscale": 1.0, "mscale_all_dim": 1.0},
        ),
    ),
    "glm4-moe": Case(
        arch=ARCH.GLM4_MOE, words=glm, save=save_biased,
        config=Glm4MoeConfig(
            **SIZES, hidden_size=30, intermediate_size=22, moe_intermediate_size=18, num_attention_heads=5,
            num_key_value_heads=1, head_dim=12, attention_bias=True, use_qk_norm=True, n_routed_experts=7,
            num_experts_per_tok=2, routed_scaling_factor=2.5,
        ),
    ),
    "glm4-moe-groups-tied": Case(
        arch=ARCH.GLM4_MOE, words=glm, save=save_biased,
        config=Glm4MoeConfig(
            **SIZES | {"num_hidden_layers": 3}, hidden_size=42, intermediate_size=26, moe_intermediate_size=14,
            num_attention_heads=6, num_key_value_heads=3, n_routed_experts=12, num_experts_per_tok=5, n_group=4,
            topk_group=2, n_shared_experts=3, first_k_dense_replace=2, norm_topk_prob=False,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.3},
        ),
    ),
    "gpt-oss": Case(
        arch=ARCH.GPT_OSS, words=gpt_oss, tensors=apart,
        config=GptOssConfig(
            **SIZES, hidden_size=32, intermediate_size=32, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
            num_local_experts=5, num_experts_per_tok=2, sliding_window=9, rope_parameters=YARN | {"truncate": False},
        ),
    ),
    "gpt-oss-tied": Case(
        arch=ARCH.GPT_OSS, words=gpt_oss, tensors=apart,
        config=GptOssConfig(
            **SIZES, hidden_size=42, intermediate_size=22, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
            num_local_experts=3, num_experts_per_tok=3, sliding_window=33, attention_bias=False,
            tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
    ),
    "exaone": Case(
        arch=ARCH.EXAONE, words=exaone,
        config=LlamaConfig(**SIZES, hidden_size=42, intermediate_size=66, num_attention_heads=7,
                           num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=LLAMA3),
    ),
    "qwen": Case(
        arch=ARCH.QWEN, base=qwen, tensors=fused,
        config=Qwen2Config(**SIZES, hidden_size=42, intermediate_size=33, num_attention_heads=7,
                           num_key_value_heads=7),
    ),
    "internlm2": Case(
        arch=ARCH.INTERNLM2, tensors=llama_cpp.all_in_pairs,
        config=LlamaConfig(**SIZES, hidden_size=48, intermediate_size=64, num_attention_heads=6,
                           num_key_value_heads=2),
    ),
}  # fmt: skip
