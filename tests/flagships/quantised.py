"""Large checkpoints as quantisers publish them.

Names and shapes of the float model come from transformers' own conversion. Each matrix is stored as the library of the
format stores it (docstrings of tests/quantised/formats.py). Config keys are as published; those of AWQ and GPTQ are as
AutoAWQ 0.2.9 and GPT-QModel 7.7.0 write them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.flagships.headers import Tensors, float_tensors, write
from tests.flagships.published import BY_NAME, Flagship

Store = Callable[[str, tuple[int, int]], Tensors]


@dataclass(frozen=True, kw_only=True)
class Quantised(Flagship):
    """`of` is the flagship that was quantised; `whole` are globs of what was not; `store` is how a matrix is.

    `ranks`: among how many tensor ranks it divides, of 8 and less. `otherwise`: keys that are not as in `of`; `plain`
    is the dtype of what was not quantised.
    """

    of: str
    otherwise: dict[str, Any] = field(default_factory=dict)
    plain: str = "BF16"
    words: dict[str, Any] = field(default_factory=dict)
    sidecar: dict[str, Any] = field(default_factory=dict)
    whole: tuple[str, ...]
    store: Store
    ranks: int = 8

    @property
    def config(self) -> dict[str, Any]:
        config = {key: value for key, value in BY_NAME[self.of].config.items() if key != "quantization_config"}
        return config | self.otherwise | ({"quantization_config": self.words} if self.words else {})

    def stored(self) -> Tensors:
        """Every tensor of the files."""
        found: Tensors = {}
        for name, (dtype, shape) in float_tensors(self.config).items():
            plain = len(shape) != 2 or any(fnmatchcase(name, glob) for glob in self.whole)
            stored_as = self.plain if dtype == "BF16" else dtype
            found |= {name: (stored_as, shape)} if plain else self.store(name.removesuffix("weight"), shape)
        return found

    def write(self, folder: Path) -> Tensors:
        """The checkpoint's files, of which only the headers are real; every tensor of them."""
        tensors = self.stored()
        write(folder, self, tensors)
        if self.sidecar:
            (folder / "hf_quant_config.json").write_text(json.dumps(self.sidecar), "utf-8")
        return tensors


def rows(stem: str, shape: tuple[int, int]) -> Tensors:
    """FBGEMM's: a scale a row."""
    return {f"{stem}weight": ("F8_E4M3", shape), f"{stem}weight_scale": ("F32", (shape[0], 1))}


def blocks(stem: str, shape: tuple[int, int]) -> Tensors:
    """Qwen's: a scale for 128 x 128 values, in bfloat16."""
    scales = tuple(math.ceil(size / 128) for size in shape)
    return {f"{stem}weight": ("F8_E4M3", shape), f"{stem}weight_scale_inv": ("BF16", scales)}


def nvfp4(stem: str, shape: tuple[int, int]) -> Tensors:
    """ModelOpt's: two values a byte, a scale for 16, one for the matrix, and one for its input."""
    return {
        f"{stem}weight": ("U8", (shape[0], shape[1] // 2)),
        f"{stem}weight_scale": ("F8_E4M3", (shape[0], shape[1] // 16)),
        f"{stem}weight_scale_2": ("F32", ()),
        f"{stem}input_scale": ("F32", ()),
    }


def awq(stem: str, shape: tuple[int, int]) -> Tensors:
    """AutoAWQ's `WQLinear_GEMM`: eight outputs a word, a zero point and a scale for 128 inputs of an output."""
    out, columns = shape
    return {
        f"{stem}qweight": ("I32", (columns, out // 8)),
        f"{stem}qzeros": ("I32", (columns // 128, out // 8)),
        f"{stem}scales": ("F16", (columns // 128, out)),
    }


def gptq(stem: str, shape: tuple[int, int]) -> Tensors:
    """AutoGPTQ's `QuantLinear`: eight inputs a word, and which of the groups of 128 each input is in."""
    out, columns = shape
    return {
        f"{stem}g_idx": ("I32", (columns,)),
        f"{stem}qweight": ("I32", (columns // 8, out)),
        f"{stem}qzeros": ("I32", (columns // 128, out // 8)),
        f"{stem}scales": ("F16", (columns // 128, out)),
    }


# Llama 3.1 of 70 billion, where its config.json is not that of 405 billion.
OF_70B = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
    "torch_dtype": "float16",
}  # fmt: skip
# What `AwqConfig(modules_to_not_convert=None).to_transformers_dict()` of AutoAWQ 0.2.9 (awq/models/_config.py) gives.
AWQ_WORDS = {
    "quant_method": "awq", "zero_point": True, "group_size": 128, "bits": 4, "version": "gemm",
    "modules_to_not_convert": None,
}  # fmt: skip
# What `QuantizeConfig(bits=4, group_size=128, desc_act=True, sym=True).to_dict()` of GPT-QModel 7.7.0 gives; of `meta`,
# which describes how it was quantised, less a folder for temporary files.
GPTQ_WORDS = {
    "bits": 4, "group_size": 128, "desc_act": True, "lm_head": False, "method": "gptq", "quant_method": "gptq",
    "format": "gptq", "checkpoint_format": "gptq", "pack_dtype": "int32",
    "meta": {
        "fallback": {"strategy": "rtn", "threshold": "0.5%", "smooth": None}, "offload_to_disk": True,
        "telemetry": {"device": False}, "pack_impl": "auto", "gc_mode": "interval",
        "wait_for_submodule_finalizers": False, "auto_forward_data_parallel": True, "dense_vram_strategy": "exclusive",
        "dense_vram_strategy_devices": None, "moe_vram_strategy": "exclusive", "moe_vram_strategy_devices": None,
        "gptaq": None, "mse": 0.0, "mock_quantization": False, "act_group_aware": False,
        "hessian": {
            "chunk_size": None, "chunk_bytes": None, "staging_dtype": "float32", "dedup_shared_inputs": True,
        },
    },
    "sym": True,
}  # fmt: skip
LAYERS = 126
UNQUANTISED = [f"model.layers.{k}.self_attn.{x}_proj" for k in range(LAYERS) for x in "qkvo"]
ENDS = [f"model.layers.{k}.mlp.{x}_proj" for k in (0, LAYERS - 1) for x in ("gate", "up", "down")]
COMMON = ("model.embed_tokens.weight", "lm_head.weight")
ATTENTION = [f"model.layers.{k}.self_attn*" for k in range(61)]
GATES = [f"model.layers.{k}.mlp.gate" for k in range(94)]

QUANTISED = {
    one.name: one
    for one in (
        Quantised(
            name="llama-3.1-405b-fp8", of="llama-3.1-405b", tensors=None, shards=109,
            words={
                "quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                "modules_to_not_convert": [*UNQUANTISED, *ENDS],
            },
            whole=(*COMMON, "*.self_attn.*", "model.layers.0.*", "model.layers.125.*"), store=rows,
            source="meta-llama/Llama-3.1-405B-Instruct-FP8: config.json, arXiv 2407.21783 section 6.2",
        ),
        Quantised(
            name="qwen3-235b-a22b-fp8", of="qwen3-235b-a22b", tensors=None, shards=24,
            words={
                "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
                "modules_to_not_convert": ["lm_head", "model.embed_tokens", *GATES],
            },
            whole=(*COMMON, "*.mlp.gate.weight"), store=blocks, ranks=4, source="Qwen/Qwen3-235B-A22B-FP8: config.json",
        ),
        Quantised(
            name="deepseek-r1-nvfp4", of="deepseek-v3", tensors=None, shards=163,
            sidecar={
                "producer": {"name": "modelopt", "version": "0.23.0"},
                "quantization": {
                    "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
                    "exclude_modules": ["lm_head", *ATTENTION, "model.layers.61*"],
                },
            },
            whole=(*COMMON, "*.self_attn.*", "*.mlp.gate.weight", "model.layers.61.*"), store=nvfp4,
            source="nvidia/DeepSeek-R1-FP4: hf_quant_config.json",
        ),
        Quantised(
            name="llama-3.1-70b-awq", of="llama-3.1-405b", otherwise=OF_70B, tensors=None, shards=9, plain="F16",
            words=AWQ_WORDS, whole=COMMON, store=awq, source="AutoAWQ 0.2.9's `AwqConfig.to_transformers_dict`",
        ),
        Quantised(
            name="llama-3.1-70b-awq-fused", of="llama-3.1-405b", otherwise=OF_70B, tensors=None, shards=9, plain="F16",
            words=AWQ_WORDS | {
                "backend": "autoawq", "do_fuse": True, "fuse_max_seq_len": 512,
                "modules_to_fuse": {
                    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"], "mlp": ["gate_proj", "up_proj", "down_proj"],
                    "layernorm": ["input_layernorm", "post_attention_layernorm", "norm"], "use_alibi": False,
                },
                "exllama_config": None,
            },
            whole=COMMON, store=awq, source="transformers 4.46's `AwqConfig(do_fuse=True).to_dict`: the same files",
        ),
        Quantised(
            name="llama-3.1-70b-gptq", of="llama-3.1-405b", otherwise=OF_70B, tensors=None, shards=9, plain="F16",
            words=GPTQ_WORDS, whole=COMMON, store=gptq, source="GPT-QModel 7.7.0's `QuantizeConfig.to_dict`",
        ),
    )
}  # fmt: skip
