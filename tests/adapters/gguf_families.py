"""Families for which llama.cpp's converter changes more than names: keys, tensors and a small config of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from transformers import (
    BloomConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconH1Config,
    Glm4MoeConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Llama4TextConfig,
    LlamaConfig,
    MiMoV2FlashConfig,
    MistralConfig,
    NemotronHConfig,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)
from transformers.models.deepseek_v32 import DeepseekV32Config
from transformers.models.glm_moe_dsa import GlmMoeDsaConfig
from transformers.models.ministral3 import Ministral3Config
from transformers.models.mistral4 import Mistral4Config

from tests.adapters import gguf_keys, gguf_tensors, llama_cpp
from tests.adapters.llama_cpp import Config, Tensors
from tests.models import (
    parity,
    test_falcon_h1,
    test_gemma4,
    test_glm4_moe_lite,
    test_lfm2_moe,
    test_mimo_v2_flash,
    test_minimax_m2,
)
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


SIZES: dict[str, Any] = {"vocab_size": 131, "max_position_embeddings": 512, "num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
OF_V2 = YARN | {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32.0, "beta_slow": 1.0}
GROWTH = {"llama_4_scaling_beta": 0.1}
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
DELTA_NETS: dict[str, Any] = {
    "hidden_size": 36, "num_hidden_layers": 3, "full_attention_interval": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 12, "linear_value_head_dim": 12, "rms_norm_eps": 1e-3,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 22, "shared_expert_intermediate_size": 26,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "hidden_size": 36, "intermediate_size": 22, "num_attention_heads": 6, "num_key_value_heads": 2,
    "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_state": 12, "position_embedding_type": "nope",
    "shared_intermediate_size": 26, "attention_multiplier": 0.25, "embedding_multiplier": 3.0, "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 36, "intermediate_size": 50, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 10, "mamba_num_heads": 8, "mamba_head_dim": 6, "n_groups": 2, "ssm_state_size": 12,
}  # fmt: skip
FALCON: dict[str, Any] = {
    "hidden_size": 36, "intermediate_size": 50, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
    "mamba_n_heads": 8, "mamba_d_ssm": 56, "mamba_d_state": 12, "mamba_n_groups": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
NEXT = DELTA_NETS | EXPERTS | {"intermediate_size": 44}
CASES: dict[str, Case] = {
    "gpt2": Case(
        arch=ARCH.GPT2, base=gguf_keys.gpt2, tensors=gguf_tensors.transposed,
        config=GPT2Config(vocab_size=149, n_positions=128, n_layer=2, n_head=3, n_embd=48),
    ),
    "bloom": Case(
        arch=ARCH.BLOOM, base=gguf_keys.bloom, tensors=gguf_tensors.one_after_another,
        config=BloomConfig(vocab_size=131, hidden_size=40, n_layer=2, n_head=5, seq_length=128),
    ),
    "gpt-neox": Case(
        arch=ARCH.GPTNEOX, base=gguf_keys.gpt_neox, tensors=gguf_tensors.one_after_another,
        config=GPTNeoXConfig(**SIZES, hidden_size=112, intermediate_size=66, num_attention_heads=7,
                             hidden_act="gelu_fast"),
    ),
    "gpt-neox-one-after-the-other": Case(
        arch=ARCH.GPTNEOX, base=gguf_keys.gpt_neox, tensors=gguf_tensors.one_after_another,
        config=GPTNeoXConfig(
            **SIZES, hidden_size=36, intermediate_size=50, num_attention_heads=3, use_parallel_residual=False,
            hidden_act="gelu_fast", tie_word_embeddings=True, attention_bias=False,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        ),
    ),
    "deepseek-v2": Case(
        arch=ARCH.DEEPSEEK2, words=gguf_keys.deepseek, tensors=gguf_tensors.split_kv_b,
        config=DeepseekV2Config(**SIZES | MLA, topk_method="group_limited_greedy", routed_scaling_factor=16.0,
                                rope_parameters=OF_V2),
    ),
    "deepseek-v2-lite-tied": Case(
        arch=ARCH.DEEPSEEK2, words=gguf_keys.deepseek, tensors=gguf_tensors.split_kv_b,
        config=DeepseekV2Config(**SIZES | SQUARE_MLA | {"q_lora_rank": None, "n_group": None, "topk_group": None},
                                tie_word_embeddings=True),
    ),
    "deepseek-v2-of-2024": Case(
        arch=ARCH.DEEPSEEK2, words=gguf_keys.deepseek_of_2024,
        config=DeepseekV2Config(**SIZES | SQUARE_MLA | {"n_group": None, "topk_group": None}, rope_parameters=OF_V2),
    ),
    "deepseek-v3": Case(
        arch=ARCH.DEEPSEEK2, words=gguf_keys.v3, tensors=gguf_tensors.split_kv_b, save=save_biased,
        config=DeepseekV3Config(**SIZES | MLA, rope_parameters=OF_V2 | {"mscale": 1.0, "mscale_all_dim": 1.0}),
    ),
    # GLM-4.7-Flash: llama.cpp's converter writes it as DeepSeek-V3, which it is but for its sizes.
    "deepseek-v3-sizes-of-glm": Case(
        arch=ARCH.DEEPSEEK2, words=gguf_keys.glm_lite, tensors=gguf_tensors.split_kv_b, save=save_biased,
        config=test_glm4_moe_lite.CASES["groups-yarn-tied"],
    ),
    "deepseek-v3-no-dense-layer": Case(
        arch=ARCH.DEEPSEEK2, words=gguf_keys.v3, tensors=gguf_tensors.split_kv_b, save=save_biased,
        config=DeepseekV3Config(**SIZES | SQUARE_MLA | {"first_k_dense_replace": 0}, norm_topk_prob=False,
                                routed_scaling_factor=1.0),
    ),
    "deepseek-v32": Case(  # gguf 0.19 lists no DEEPSEEK32; GLM_DSA's tensors have the same names
        arch=ARCH.GLM_DSA, called="deepseek32", words=gguf_keys.v32, tensors=gguf_tensors.split_kv_b, save=save_biased,
        config=DeepseekV32Config(
            **SIZES | MLA, index_n_heads=13, index_head_dim=10, index_topk=7,
            rope_parameters=OF_V2 | {"mscale": 1.0, "mscale_all_dim": 1.0},
        ),
    ),
    "glm-moe-dsa": Case(
        arch=ARCH.GLM_DSA, words=gguf_keys.glm_dsa, tensors=gguf_tensors.split_kv_b, save=save_biased,
        config=GlmMoeDsaConfig(
            **SIZES | MLA, index_n_heads=13, index_head_dim=10, index_topk=7, indexer_types=["full", "shared", "full"],
        ),
    ),
    "glm-moe-dsa-without-types": Case(
        arch=ARCH.GLM_DSA, words=gguf_keys.glm_dsa_of_2026, tensors=gguf_tensors.split_kv_b, save=save_biased,
        config=GlmMoeDsaConfig(
            **SIZES | SQUARE_MLA | {"num_hidden_layers": 5, "max_position_embeddings": 1 << 20}, index_n_heads=13,
            index_head_dim=10, index_topk=7, index_topk_freq=4, index_skip_topk_offset=3,
        ),
    ),
    "glm4-moe": Case(
        arch=ARCH.GLM4_MOE, words=gguf_keys.glm, save=save_biased,
        config=Glm4MoeConfig(
            **SIZES, hidden_size=30, intermediate_size=22, moe_intermediate_size=18, num_attention_heads=5,
            num_key_value_heads=1, head_dim=12, attention_bias=True, use_qk_norm=True, n_routed_experts=7,
            num_experts_per_tok=2, routed_scaling_factor=2.5,
        ),
    ),
    "glm4-moe-groups-tied": Case(
        arch=ARCH.GLM4_MOE, words=gguf_keys.glm, save=save_biased,
        config=Glm4MoeConfig(
            **SIZES | {"num_hidden_layers": 3}, hidden_size=42, intermediate_size=26, moe_intermediate_size=14,
            num_attention_heads=6, num_key_value_heads=3, n_routed_experts=12, num_experts_per_tok=5, n_group=4,
            topk_group=2, n_shared_experts=3, first_k_dense_replace=2, norm_topk_prob=False,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.3},
        ),
    ),
    "lfm2": Case(
        arch=ARCH.LFM2, base=gguf_keys.lfm2, tensors=gguf_tensors.without_one,
        config=Lfm2Config(
            **SIZES | {"num_hidden_layers": 3}, hidden_size=48, intermediate_size=64, num_attention_heads=6,
            num_key_value_heads=2, layer_types=["conv", "full_attention", "conv"], block_multiple_of=2,
        ),
    ),
    "lfm2-untied-four-taps": Case(
        arch=ARCH.LFM2, base=gguf_keys.lfm2, tensors=gguf_tensors.without_one,
        config=Lfm2Config(
            **SIZES, hidden_size=40, intermediate_size=26, num_attention_heads=5, num_key_value_heads=5,
            layer_types=["full_attention", "conv"], block_auto_adjust_ff_dim=False, conv_L_cache=4,
            tie_word_embeddings=False,
        ),
    ),
    "lfm2-moe": Case(
        arch=ARCH.LFM2MOE, base=gguf_keys.lfm2_moe, tensors=gguf_tensors.lfm2_moe, save=test_lfm2_moe.save_biased,
        config=Lfm2MoeConfig(
            **SIZES | {"num_hidden_layers": 3}, hidden_size=48, intermediate_size=64, moe_intermediate_size=26,
            num_attention_heads=6, num_key_value_heads=2, layer_types=["conv", "full_attention", "conv"],
            num_dense_layers=1, num_experts=6, num_experts_per_tok=2,
        ),
    ),
    "gpt-oss": Case(
        arch=ARCH.GPT_OSS, words=gguf_keys.gpt_oss, tensors=gguf_tensors.apart,
        config=GptOssConfig(
            **SIZES, hidden_size=32, intermediate_size=32, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
            num_local_experts=5, num_experts_per_tok=2, sliding_window=9, rope_parameters=YARN | {"truncate": False},
        ),
    ),
    "gpt-oss-tied": Case(
        arch=ARCH.GPT_OSS, words=gguf_keys.gpt_oss, tensors=gguf_tensors.apart,
        config=GptOssConfig(
            **SIZES, hidden_size=42, intermediate_size=22, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
            num_local_experts=3, num_experts_per_tok=3, sliding_window=33, attention_bias=False,
            tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
    ),
    "llama4": Case(
        arch=ARCH.LLAMA4, words=gguf_keys.llama4, tensors=gguf_tensors.llama4,
        config=Llama4TextConfig(
            **SIZES | {"num_hidden_layers": 4}, hidden_size=30, intermediate_size=22, intermediate_size_mlp=34,
            num_attention_heads=5, num_key_value_heads=1, head_dim=10, num_local_experts=5, num_experts_per_tok=2,
            interleave_moe_layer_step=2,
            rope_parameters=LLAMA3 | {"rope_theta": 5e5, "factor": 16.0, "high_freq_factor": 1.0},
        ),
    ),
    **{
        f"gemma4-{name}": Case(arch=ARCH.GEMMA4, words=gguf_keys.gemma4, tensors=gguf_tensors.gemma4, config=config)
        for name, config in test_gemma4.CASES.items() if name != "unified"
    },
    "minimax-m2": Case(
        arch=ARCH.MINIMAXM2, words=gguf_keys.minimax,
        config=test_minimax_m2.CASES["part-turns-more-experts-than-tokens"],
    ),
    "minimax-m2-yarn-tied": Case(
        arch=ARCH.MINIMAXM2, words=gguf_keys.minimax, config=test_minimax_m2.CASES["yarn-tied"], save=save_biased,
    ),
    "mimo-v2-flash": Case(
        arch=ARCH.MIMO2, words=gguf_keys.mimo, tensors=gguf_tensors.mimo,
        config=test_mimo_v2_flash.CASES["published-pattern"],
    ),
    "mimo-v2-flash-groups-tied": Case(
        arch=ARCH.MIMO2, words=gguf_keys.mimo, tensors=gguf_tensors.mimo, save=save_biased,
        config=MiMoV2FlashConfig(
            **SIZES | {"num_hidden_layers": 4}, hidden_size=42, intermediate_size=26, moe_intermediate_size=14,
            num_attention_heads=6, num_key_value_heads=3, head_dim=12, v_head_dim=8, attention_bias=True,
            n_routed_experts=12, num_experts_per_tok=5, n_group=4, topk_group=2, sliding_window=9,
            attention_value_scale=None, tie_word_embeddings=True, mlp_layer_types=["sparse", "dense"] * 2,
            layer_types=["sliding_attention", *["full_attention"] * 2, "sliding_attention"],
        ),
    ),
    "exaone": Case(
        arch=ARCH.EXAONE, words=gguf_keys.exaone,
        config=LlamaConfig(**SIZES, hidden_size=42, intermediate_size=66, num_attention_heads=7,
                           num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=LLAMA3),
    ),
    "qwen": Case(
        arch=ARCH.QWEN, base=gguf_keys.qwen, tensors=gguf_tensors.fused,
        config=Qwen2Config(**SIZES, hidden_size=42, intermediate_size=33, num_attention_heads=7,
                           num_key_value_heads=7),
    ),
    "internlm2": Case(
        arch=ARCH.INTERNLM2, tensors=llama_cpp.all_in_pairs,
        config=LlamaConfig(**SIZES, hidden_size=48, intermediate_size=64, num_attention_heads=6,
                           num_key_value_heads=2),
    ),
    "granitemoehybrid": Case(
        arch=ARCH.GRANITE_HYBRID, words=gguf_keys.granite_hybrid, tensors=gguf_tensors.granite_hybrid,
        config=GraniteMoeHybridConfig(
            **SIZES | GRANITE, num_local_experts=5, num_experts_per_tok=2, mamba_n_groups=2, tie_word_embeddings=True,
        ),
    ),
    "granitemoehybrid-dense": Case(
        arch=ARCH.GRANITE_HYBRID, words=gguf_keys.granite_hybrid, tensors=gguf_tensors.granite_hybrid,
        config=GraniteMoeHybridConfig(
            **SIZES | GRANITE, num_local_experts=0, num_experts_per_tok=0, mamba_conv_bias=False, mamba_d_conv=3,
        ),
    ),
    "granitemoehybrid-attention-only": Case(
        arch=ARCH.GRANITE, words=gguf_keys.granite_hybrid, tensors=gguf_tensors.granite_hybrid,
        config=GraniteMoeHybridConfig(
            **SIZES | GRANITE | {"layer_types": ["attention"] * 2, "position_embedding_type": "rope"},
            num_local_experts=0, num_experts_per_tok=0,
        ),
    ),
    "granitemoehybrid-of-experts-without-mamba": Case(
        arch=ARCH.GRANITE_MOE, words=gguf_keys.granite_moe, tensors=gguf_tensors.granite_hybrid,
        config=GraniteMoeHybridConfig(
            **SIZES | GRANITE | {"layer_types": ["attention"] * 2, "position_embedding_type": "rope"},
            num_local_experts=4, num_experts_per_tok=2,
        ),
    ),
    "ministral3": Case(
        arch=ARCH.MISTRAL3, words=gguf_keys.ministral3, tensors=llama_cpp.all_in_pairs,
        config=Ministral3Config(
            **SIZES, hidden_size=42, intermediate_size=66, num_attention_heads=7, num_key_value_heads=1, head_dim=12,
            rope_parameters=OF_V2 | {"mscale": 1.0, "mscale_all_dim": 0.8, "original_max_position_embeddings": 16}
            | GROWTH,
        ),
    ),
    "ministral3-without-mscale-tied": Case(
        arch=ARCH.MISTRAL3, words=gguf_keys.ministral3, tensors=llama_cpp.all_in_pairs,
        config=Ministral3Config(
            **SIZES, hidden_size=36, intermediate_size=50, num_attention_heads=4, num_key_value_heads=4, head_dim=10,
            tie_word_embeddings=True,
            rope_parameters=OF_V2 | {"mscale": 1.0, "mscale_all_dim": 0.0, "llama_4_scaling_beta": 0.0},
        ),
    ),
    "mistral-small": Case(
        arch=ARCH.MISTRAL3, words=gguf_keys.mistral_small, tensors=llama_cpp.all_in_pairs,
        config=MistralConfig(
            **SIZES, hidden_size=36, intermediate_size=50, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
            sliding_window=None,
        ),
    ),
    "mistral4": Case(
        arch=ARCH.MISTRAL4, words=gguf_keys.deepseek, tensors=gguf_tensors.of_mistral4,
        config=Mistral4Config(
            **SIZES | SQUARE_MLA, rope_parameters=OF_V2 | {"mscale": 1.0, "mscale_all_dim": 1.0} | GROWTH,
        ),
    ),
    "nemotron-h": Case(
        arch=ARCH.NEMOTRON_H, base=gguf_keys.nemotron_h, tensors=gguf_tensors.nemotron_h,
        config=NemotronHConfig(
            **NEMOTRON, layers_block_type=["linear_attention", "mlp", "full_attention"], conv_kernel=3, use_bias=True,
            mlp_bias=True,
        ),
    ),
    "nemotron-h-moe": Case(
        arch=ARCH.NEMOTRON_H_MOE, base=gguf_keys.nemotron_h, tensors=gguf_tensors.nemotron_h,
        config=NemotronHConfig(
            **NEMOTRON, layers_block_type=["full_attention", "moe", "linear_attention"], use_conv_bias=False,
            n_routed_experts=6, num_experts_per_tok=2, routed_scaling_factor=2.5, moe_intermediate_size=22,
            moe_shared_expert_intermediate_size=26, moe_latent_size=24,
        ),
    ),
    "falcon-h1": Case(
        arch=ARCH.FALCON_H1, words=gguf_keys.falcon_h1, tensors=gguf_tensors.falcon_h1,
        config=FalconH1Config(
            **SIZES | FALCON, **test_falcon_h1.OF_MODEL, **test_falcon_h1.OF_LAYERS, mamba_rms_norm=True,
            mamba_norm_before_gate=False,
        ),
    ),
    "falcon-h1-no-norm-tied": Case(
        arch=ARCH.FALCON_H1, words=gguf_keys.falcon_h1, tensors=gguf_tensors.falcon_h1,
        config=FalconH1Config(
            **SIZES | FALCON, **test_falcon_h1.OF_LAYERS, mamba_conv_bias=False, mamba_d_conv=3,
            tie_word_embeddings=True,
        ),
    ),
    "qwen3-next": Case(
        arch=ARCH.QWEN3NEXT, words=gguf_keys.qwen3_next, tensors=gguf_tensors.of_delta_nets,
        config=Qwen3NextConfig(**SIZES | NEXT),
    ),
    "qwen3-next-of-2025-tied": Case(
        arch=ARCH.QWEN3NEXT, words=gguf_keys.qwen3_next, tensors=gguf_tensors.of_older_delta_nets,
        config=Qwen3NextConfig(
            **SIZES | NEXT | {"linear_num_key_heads": 3, "linear_conv_kernel_dim": 3}, tie_word_embeddings=True,
        ),
    ),
    "qwen3-5": Case(
        arch=ARCH.QWEN35, words=gguf_keys.qwen3_5, tensors=gguf_tensors.of_tiled_delta_nets,
        config=Qwen3_5TextConfig(**SIZES | DELTA_NETS | {"linear_value_head_dim": 10}, intermediate_size=44),
    ),
    "qwen3-5-moe": Case(
        arch=ARCH.QWEN35MOE, words=gguf_keys.qwen3_5, tensors=gguf_tensors.of_tiled_delta_nets,
        config=Qwen3_5MoeTextConfig(
            **SIZES | DELTA_NETS | EXPERTS | {"linear_num_key_heads": 3}, tie_word_embeddings=True,
        ),
    ),
}  # fmt: skip
