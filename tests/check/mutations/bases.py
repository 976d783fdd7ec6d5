"""The valid checkpoints from which mutations are created: small random models saved by transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.check import drafts
from tests.check.drafts import GPT2, LLAMA, MIXTRAL, ROOT, Draft, Family, read_draft, tiny
from tests.check.mutations.stored.bases import STORED, exact, stored


def _mistral() -> Any:
    """Of sizes that two ranks can share, except the three key heads."""
    from transformers import MistralConfig

    return MistralConfig(
        vocab_size=48,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=8,
        max_position_embeddings=64,
        sliding_window=16,
        dtype="float16",
        tie_word_embeddings=True,
    )


def _bloom() -> Any:
    """Of heads that two ranks cannot share."""
    from transformers import BloomConfig

    return BloomConfig(vocab_size=48, hidden_size=24, n_layer=3, n_head=3)


def _gpt_oss() -> Any:
    """Wide enough for two blocks of MXFP4."""
    from transformers import GptOssConfig

    return GptOssConfig(
        vocab_size=48,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 150000.0},
    )


def _deepseek() -> Any:
    """One dense layer and two with experts in groups; every matrix is a multiple of 16 each way."""
    from transformers import DeepseekV3Config

    return DeepseekV3Config(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=1,
        max_position_embeddings=64,
    )


MISTRAL = replace(LLAMA, name="mistral")
BLOOM = Family(
    name="bloom", model=None, rules=ROOT / "adapters/bloom.py", root="transformer.", layers="h", layers_key="n_layer"
)
GPT_OSS = replace(LLAMA, name="gpt_oss", rules=ROOT / "adapters/gpt_oss.py")
DEEPSEEK = replace(LLAMA, name="deepseek_v3", rules=ROOT / "adapters/deepseek_v3.py")
CONFIGS: dict[str, Callable[[], Any]] = {
    **drafts.CONFIGS,
    "mistral": _mistral,
    "bloom": _bloom,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek,
}
BASES: dict[str, Family] = {family.name: family for family in (GPT2, LLAMA, MISTRAL, MIXTRAL, BLOOM, GPT_OSS, DEEPSEEK)}


@cache
def _saved(name: str) -> Draft:
    if name in STORED:
        return stored(name)
    with TemporaryDirectory() as folder:
        return read_draft(tiny(BASES[name], Path(folder), CONFIGS[name]()), BASES[name])


def base(name: str) -> Draft:
    """A fresh copy; the arrays are shared and are not to be written to."""
    return _saved(name).copy()


def reference(name: str) -> Draft:
    """What activations are saved from: the model itself, of a quantised one the floats that it stands for."""
    return exact(name).copy() if name in STORED else base(name)
