"""TensorRT-LLM's module numbers of LoRAs, and the parameters of bringup's graphs that they stand for.

Sources: docs/source/advanced/lora.md, LORA_MODULE_IDS of tensorrt_llm/lora_manager.py, and
get_default_trtllm_modules_to_hf_modules of tensorrt_llm/lora_helper.py in NVIDIA/TensorRT-LLM. As in its checkpoints,
`h_to_4h` is the gate if there is one, and `gate` is up: lora.md states the reverse, its code does this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

IDS: Mapping[str, int] = {
    "attn_qkv": 0, "attn_q": 1, "attn_k": 2, "attn_v": 3, "attn_dense": 4, "mlp_h_to_4h": 5, "mlp_4h_to_h": 6,
    "mlp_gate": 7, "cross_attn_qkv": 8, "cross_attn_q": 9, "cross_attn_k": 10, "cross_attn_v": 11,
    "cross_attn_dense": 12, "moe_h_to_4h": 13, "moe_4h_to_h": 14, "moe_gate": 15, "moe_router": 16, "mlp_router": 17,
}  # fmt: skip

_ATTENTION = r"(?:self_attn|self_attention|attention|attn)"
# The first that matches the end of a parameter's name after its layer's.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"mlp\.experts\.gate_proj", "moe_h_to_4h"),
        (r"mlp\.experts\.down_proj", "moe_4h_to_h"),
        (r"mlp\.experts\.up_proj", "moe_gate"),
        (r"mlp\.(?:gate|router)\.weight", "moe_router"),
        (r"mlp\.shared_expert_gate\.weight", "mlp_router"),
        (rf"{_ATTENTION}\.c_attn\.weight", "attn_qkv"),
        (rf"{_ATTENTION}\.q_proj\.weight", "attn_q"),
        (rf"{_ATTENTION}\.k_proj\.weight", "attn_k"),
        (rf"{_ATTENTION}\.v_proj\.weight", "attn_v"),
        (rf"{_ATTENTION}\.(?:o_proj|dense|c_proj)\.weight", "attn_dense"),
        (r"mlp\.(?:(?:shared_expert\.)?gate_proj|c_fc|dense_h_to_4h)\.weight", "mlp_h_to_4h"),
        (r"mlp\.(?:(?:shared_expert\.)?down_proj|c_proj|dense_4h_to_h)\.weight", "mlp_4h_to_h"),
        (r"mlp\.(?:shared_expert\.)?up_proj\.weight", "mlp_gate"),
    )
)
# Modules of cross attention, which no built-in graph has: (a section of the path, the last section) → name.
_CROSS_PATH = re.compile(
    r"\.(\d+)\.(?:\w+\.)*?(?:cross_attn|encoder_attn|cross_attention|crossattention|EncDecAttention)\."
)
_CROSS_ENDS = {
    "qkv_proj": "cross_attn_qkv", "query_key_value": "cross_attn_qkv", "q_proj": "cross_attn_q", "q": "cross_attn_q",
    "k_proj": "cross_attn_k", "k": "cross_attn_k", "v_proj": "cross_attn_v", "v": "cross_attn_v",
    "o_proj": "cross_attn_dense", "out_proj": "cross_attn_dense", "o": "cross_attn_dense", "dense": "cross_attn_dense",
}  # fmt: skip


def module_id(name: str) -> int | None:
    """The module number of a parameter, by its name after its layer's; None if TensorRT-LLM has none."""
    return next((IDS[module] for pattern, module in _PATTERNS if pattern.fullmatch(name)), None)


def cross_attention(module: str) -> tuple[int, int] | None:
    """Layer and number of a module of cross attention; None for any other."""
    found, end = _CROSS_PATH.search(f".{module}"), module.rpartition(".")[2]
    return (int(found[1]), IDS[_CROSS_ENDS[end]]) if found and end in _CROSS_ENDS else None
