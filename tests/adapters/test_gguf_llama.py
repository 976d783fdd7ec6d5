"""llama.cpp's layout of a Llama taken back, q and k pairs and biases included; a tie stored twice is warned of."""

from __future__ import annotations

import numpy as np
import pytest

import bringup
from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.adapters.dialects.llama import table
from bringup.adapters.llama import adapter
from bringup.adapters.planning.expected_headers import published
from bringup.adapters.planning.plan import make_plan
from bringup.adapters.sources.dummy import dummy_checkpoint
from bringup.compile.job import open_job
from bringup.graphs.llama import Llama, LlamaConfig
from tests.adapters.llama_cpp import in_pairs

RAW = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 11,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": True,
    "tie_word_embeddings": True,
}
NAMES = {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
NAMES |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"} | {
    f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")
}


def to_gguf(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    if name.startswith("layers."):
        _, layer, rest = name.split(".", 2)
        module, _, leaf = rest.rpartition(".")
        if module in ("self_attn.q_proj", "self_attn.k_proj"):
            array = in_pairs(array, 4 if "q_proj" in module else 2)
        return f"blk.{layer}.{NAMES[module]}.{leaf}", array
    return {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name], array


def test_weights_and_biases_come_back():
    config = LlamaConfig.from_hf(RAW)
    signature, rules = Llama(config).signature(), adapter(config)
    checkpoint = dummy_checkpoint(published(signature, rules), RAW)
    tensors = {name: checkpoint.read(info) for name, info in checkpoint.headers.items()}
    renamed = dict(to_gguf(name, array) for name, array in tensors.items())
    renamed["rope_freqs.weight"] = np.ones(2, np.float32)
    other = dict_checkpoint(renamed, RAW)
    plan = make_plan(signature, table(config), other.headers)
    assert plan.problems == []
    assert list(plan.dropped) == ["rope_freqs.weight"]
    arrays = materialise(plan, other)
    wanted = materialise(make_plan(signature, rules, checkpoint.headers), checkpoint)
    assert arrays.keys() == wanted.keys()
    assert all(np.array_equal(arrays[name], array) for name, array in wanted.items())


def test_a_tied_head_with_other_values_is_warned_of(tmp_path):
    config = LlamaConfig.from_hf(RAW)
    checkpoint = dummy_checkpoint(published(Llama(config).signature(), adapter(config)), RAW)
    tensors = {name: checkpoint.read(info) for name, info in checkpoint.headers.items()}
    tensors["lm_head.weight"] = tensors["embed_tokens.weight"] + 1
    with pytest.warns(UserWarning, match="BU114.*lm_head.weight"):
        bringup.build(open_job(None, dict_checkpoint(tensors, RAW)), out=tmp_path / "b", target="torch", max_seq_len=64)
    same = dict(tensors, **{"lm_head.weight": tensors["embed_tokens.weight"]})
    bringup.build(open_job(None, dict_checkpoint(same, RAW)), out=tmp_path / "c", target="torch", max_seq_len=64)
