"""TensorRT-LLM's and vLLM's forms of each family, against tables and numpy written by hand after their formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.by_hand import Arrays, column, row
from tests.convert.test_convert import equal, save

HEADS, KV = 4, 2
TP = 2


def fused(parts: list[np.ndarray], rank: int) -> np.ndarray:
    """A rank's rows of each part, one part after the other."""
    return np.concatenate([column(part, rank, TP) for part in parts])


def head(w: np.ndarray, rank: int) -> np.ndarray:
    """A rank's rows of a vocabulary of 33, of which there is one row of zeros."""
    return column(np.concatenate([w, np.zeros_like(w[:1])]), rank, TP)


def llama_like(tensors: Arrays, rank: int) -> Arrays:
    """docs/source/architecture/checkpoint.md of TensorRT-LLM; `fc` is the gate, `gate` is up."""
    found = {
        "transformer.vocab_embedding.weight": tensors["model.embed_tokens.weight"],
        "transformer.ln_f.weight": tensors["model.norm.weight"],
        "lm_head.weight": head(tensors["lm_head.weight"], rank),
    }
    for layer in range(2):
        t, o = f"transformer.layers.{layer}.", f"model.layers.{layer}."
        found[f"{t}input_layernorm.weight"] = tensors[f"{o}input_layernorm.weight"]
        found[f"{t}post_layernorm.weight"] = tensors[f"{o}post_attention_layernorm.weight"]
        for w in ("weight", "bias"):
            if f"{o}self_attn.q_proj.{w}" in tensors:
                found[f"{t}attention.qkv.{w}"] = fused([tensors[f"{o}self_attn.{x}_proj.{w}"] for x in "qkv"], rank)
        for x in "qk":
            if f"{o}self_attn.{x}_norm.weight" in tensors:
                found[f"{t}attention.{x}_layernorm.weight"] = tensors[f"{o}self_attn.{x}_norm.weight"]
        found[f"{t}attention.dense.weight"] = row(tensors[f"{o}self_attn.o_proj.weight"], rank, TP)
        found[f"{t}mlp.fc.weight"] = column(tensors[f"{o}mlp.gate_proj.weight"], rank, TP)
        found[f"{t}mlp.gate.weight"] = column(tensors[f"{o}mlp.up_proj.weight"], rank, TP)
        found[f"{t}mlp.proj.weight"] = row(tensors[f"{o}mlp.down_proj.weight"], rank, TP)
    return found


def exaone(tensors: Arrays, rank: int) -> Arrays:
    words = {
        "transformer.wte": "model.embed_tokens", "transformer.ln_f": "model.norm", "transformer.h": "model.layers",
        "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.attention.out_proj": "self_attn.o_proj",
        "attn.attention": "self_attn", "c_fc_0": "gate_proj", "c_fc_1": "up_proj", "c_proj": "down_proj",
    }  # fmt: skip
    for old, new in words.items():
        tensors = {name.replace(old, new): w for name, w in tensors.items()}
    return llama_like(tensors, rank)


def qwen(tensors: Arrays, rank: int) -> Arrays:
    """Qwen 1: of `c_attn` q, k and v, `w2` is the gate, `w1` up."""
    words = {
        "transformer.wte": "model.embed_tokens", "transformer.ln_f": "model.norm", "transformer.h": "model.layers",
        "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.c_proj": "self_attn.o_proj",
        "mlp.w2": "mlp.gate_proj", "mlp.w1": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj",
    }  # fmt: skip
    for old, new in words.items():
        tensors = {name.replace(old, new): w for name, w in tensors.items()}
    apart: Arrays = {}
    for name, w in tensors.items():
        if "attn.c_attn" in name:
            names = [name.replace("attn.c_attn", f"self_attn.{x}_proj") for x in "qkv"]
            apart |= zip(names, np.split(w, 3), strict=True)
        else:
            apart[name] = w
    return llama_like(apart, rank)


def bloom(tensors: Arrays, rank: int) -> Arrays:
    """Its q, k and v are head by head: model-weights-loader.md, customized weight layout."""
    found = {
        "transformer.vocab_embedding.weight": tensors["word_embeddings.weight"],
        "lm_head.weight": head(tensors["word_embeddings.weight"], rank),
    }
    for w in ("weight", "bias"):
        found[f"transformer.ln_embed.{w}"] = tensors[f"word_embeddings_layernorm.{w}"]
        found[f"transformer.ln_f.{w}"] = tensors[f"ln_f.{w}"]
        for layer in range(2):
            t, o = f"transformer.layers.{layer}.", f"h.{layer}."
            found[f"{t}input_layernorm.{w}"] = tensors[f"{o}input_layernorm.{w}"]
            found[f"{t}post_layernorm.{w}"] = tensors[f"{o}post_attention_layernorm.{w}"]
            qkv = tensors[f"{o}self_attention.query_key_value.{w}"]
            by_head = qkv.reshape(HEADS, 3, -1, *qkv.shape[1:])
            parts = [by_head[:, i].reshape(-1, *qkv.shape[1:]) for i in range(3)]
            found[f"{t}attention.qkv.{w}"] = fused(parts, rank)
            found[f"{t}mlp.fc.{w}"] = column(tensors[f"{o}mlp.dense_h_to_4h.{w}"], rank, TP)
            for word, name in (("attention.dense", "self_attention.dense"), ("mlp.proj", "mlp.dense_4h_to_h")):
                array = tensors[f"{o}{name}.{w}"]
                found[f"{t}{word}.{w}"] = row(array, rank, TP) if w == "weight" else array
    return found


def gpt2(tensors: Arrays, rank: int) -> Arrays:
    """Conv1D matrices are stored [in, out]."""
    found = {
        "transformer.vocab_embedding.weight": tensors["wte.weight"],
        "transformer.position_embedding.weight": tensors["wpe.weight"],
        "lm_head.weight": head(tensors["wte.weight"], rank),
    }
    for w in ("weight", "bias"):
        found[f"transformer.ln_f.{w}"] = tensors[f"ln_f.{w}"]
        for layer in range(2):
            t, o = f"transformer.layers.{layer}.", f"h.{layer}."
            found[f"{t}input_layernorm.{w}"] = tensors[f"{o}ln_1.{w}"]
            found[f"{t}post_layernorm.{w}"] = tensors[f"{o}ln_2.{w}"]
            found[f"{t}attention.qkv.{w}"] = fused(np.split(tensors[f"{o}attn.c_attn.{w}"].T, 3), rank)
            found[f"{t}mlp.fc.{w}"] = column(tensors[f"{o}mlp.c_fc.{w}"].T, rank, TP)
            for word, name in (("attention.dense", "attn.c_proj"), ("mlp.proj", "mlp.c_proj")):
                array = tensors[f"{o}{name}.{w}"]
                found[f"{t}{word}.{w}"] = row(array.T, rank, TP) if w == "weight" else array
    return found


CASES: dict[str, tuple[Any, Callable[[Arrays, int], Arrays], dict[str, object]]] = {
    "bloom": (models.bloom, bloom, {"architecture": "BloomForCausalLM", "position_embedding_type": "alibi",
                                    "intermediate_size": 64, "num_key_value_heads": 4, "attn_bias": True}),
    "exaone": (models.exaone, exaone, {"architecture": "ExaoneForCausalLM", "rotary_base": 10000.0}),
    "gpt2": (models.gpt2, gpt2, {"architecture": "GPTForCausalLM", "position_embedding_type": "learned_absolute",
                                 "intermediate_size": 64, "mlp_bias": True}),
    "qwen": (models.qwen, qwen, {"architecture": "QWenLMHeadModel", "qwen_type": "qwen", "attn_bias": True,
                                 "mlp_bias": False, "intermediate_size": 48, "norm_epsilon": 1e-6, "head_size": 4,
                                 "max_position_embeddings": 128, "num_key_value_heads": 4}),
    "qwen2": (models.qwen2, llama_like, {"architecture": "Qwen2ForCausalLM", "qwen_type": "qwen2", "attn_bias": True,
                                         "mlp_bias": False, "qk_layernorm": False}),
    "qwen3": (models.qwen3, llama_like, {"architecture": "Qwen3ForCausalLM", "qwen_type": "qwen3", "attn_bias": False,
                                         "qk_layernorm": True, "head_size": 8}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_trtllm(bringup: Bringup, tmp_path: Path, name: str) -> None:
    model, by_hand, words = CASES[name]
    tensors, config = model()
    folder = save(tmp_path / name, tensors, config)
    result = bringup("convert", "--checkpoint", folder, "--to", "trtllm", "--tp", TP, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    for rank in range(TP):
        equal(load_file(tmp_path / "out" / f"rank{rank}.safetensors"), by_hand(tensors, rank))
    written = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert {key: written[key] for key in words} == words
    assert (written["vocab_size"], written["hidden_size"], written["num_hidden_layers"]) == (33, 16, 2)
    assert ("rotary_base" in written) is (name not in ("bloom", "gpt2"))


def test_stages_of_gpt2_count_layers_from_0(bringup: Bringup, tmp_path: Path) -> None:
    folder = save(tmp_path / "gpt2", *models.gpt2())
    result = bringup("convert", "--checkpoint", folder, "--to", "trtllm", "--pp", 2, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    names = [load_file(tmp_path / "out" / f"rank{rank}.safetensors").keys() for rank in range(2)]
    assert all({name.split(".")[2] for name in each if ".layers." in name} == {"0"} for each in names)
    assert "transformer.position_embedding.weight" in names[0]
    assert {"transformer.ln_f.weight", "lm_head.weight"} < names[1]


def padded(w: np.ndarray, rank: int) -> np.ndarray:
    """A rank's rows of a vocabulary that vLLM pads to a multiple of 64."""
    return column(np.concatenate([w, np.zeros((-len(w) % 64, *w.shape[1:]), w.dtype)]), rank, TP)


def test_sharded_state_of_mixtral(bringup: Bringup, tmp_path: Path) -> None:
    """vllm/model_executor/layers/fused_moe: w13 has the rows of w1 and of w3 of each expert, w2 a rank's columns."""
    tensors, config = models.mixtral()
    folder = save(tmp_path / "mixtral", tensors, config)
    result = bringup("convert", "--checkpoint", folder, "--to", "sharded_state", "--tp", TP, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    for rank in range(TP):
        found = load_file(tmp_path / "out" / f"model-rank-{rank}-part-0.safetensors")
        names = ("model.embed_tokens.weight", "lm_head.weight")
        wanted = {name: padded(tensors[name], rank) for name in names} | {
            "model.norm.weight": tensors["model.norm.weight"]
        }
        for layer in range(2):
            p = f"model.layers.{layer}."
            for norm in ("input_layernorm", "post_attention_layernorm"):
                wanted[f"{p}{norm}.weight"] = tensors[f"{p}{norm}.weight"]
            wanted[f"{p}self_attn.qkv_proj.weight"] = fused(
                [tensors[f"{p}self_attn.{x}_proj.weight"] for x in "qkv"], rank
            )
            wanted[f"{p}self_attn.o_proj.weight"] = row(tensors[f"{p}self_attn.o_proj.weight"], rank, TP)
            moe = f"{p}block_sparse_moe."
            w1, w2, w3 = ([tensors[f"{moe}experts.{e}.w{i}.weight"] for e in range(4)] for i in (1, 2, 3))
            wanted[f"{moe}gate.weight"] = tensors[f"{moe}gate.weight"]
            wanted[f"{moe}experts.w13_weight"] = np.stack([fused([a, b], rank) for a, b in zip(w1, w3, strict=True)])
            wanted[f"{moe}experts.w2_weight"] = np.stack([row(w, rank, TP) for w in w2])
        equal(found, wanted)


def llama_in_vllm(tensors: Arrays, rank: int) -> Arrays:
    """vllm/model_executor/models/llama.py: q, k and v fused, gate and up fused."""
    found = {name: padded(tensors[name], rank) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    found["model.norm.weight"] = tensors["model.norm.weight"]
    for layer in range(2):
        p = f"model.layers.{layer}."
        found |= {name: w for name, w in tensors.items() if name.startswith(p) and "norm" in name}
        for w in ("weight", "bias"):
            if f"{p}self_attn.q_proj.{w}" in tensors:
                qkv = [tensors[f"{p}self_attn.{x}_proj.{w}"] for x in "qkv"]
                found[f"{p}self_attn.qkv_proj.{w}"] = fused(qkv, rank)
        gate_up = [tensors[f"{p}mlp.{x}_proj.weight"] for x in ("gate", "up")]
        found[f"{p}mlp.gate_up_proj.weight"] = fused(gate_up, rank)
        for name in (f"{p}self_attn.o_proj.weight", f"{p}mlp.down_proj.weight"):
            found[name] = row(tensors[name], rank, TP)
    return found


def phi3_in_vllm(tensors: Arrays, rank: int) -> Arrays:
    """vllm/model_executor/models/phi3.py: Llama's model, whose checkpoint has both fused already."""
    apart = dict(tensors)
    for layer in range(2):
        p = f"model.layers.{layer}."
        heads = np.split(apart.pop(f"{p}self_attn.qkv_proj.weight"), [16, 16 + 8])
        apart |= zip((f"{p}self_attn.{x}_proj.weight" for x in "qkv"), heads, strict=True)
        halves = np.split(apart.pop(f"{p}mlp.gate_up_proj.weight"), 2)
        apart |= zip((f"{p}mlp.{x}_proj.weight" for x in ("gate", "up")), halves, strict=True)
    return llama_in_vllm(apart, rank)


VLLM: dict[str, tuple[Any, Callable[[Arrays, int], Arrays]]] = {
    "llama": (lambda: models.llama(vocab=33, bias=False), llama_in_vllm),
    "phi3": (models.phi3, phi3_in_vllm),
    "qwen2": (models.qwen2, llama_in_vllm),
    "qwen3": (models.qwen3, llama_in_vllm),
}


@pytest.mark.parametrize("name", VLLM)
def test_sharded_state(bringup: Bringup, tmp_path: Path, name: str) -> None:
    model, by_hand = VLLM[name]
    tensors, config = model()
    folder = save(tmp_path / name, tensors, config)
    result = bringup("convert", "--checkpoint", folder, "--to", "sharded_state", "--tp", TP, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    for rank in range(TP):
        equal(load_file(tmp_path / "out" / f"model-rank-{rank}-part-0.safetensors"), by_hand(tensors, rank))


@pytest.mark.parametrize(("name", "to"), [("phi3", "trtllm"), ("qwen", "sharded_state")])
def test_a_form_that_a_family_lacks(bringup: Bringup, tmp_path: Path, name: str, to: str) -> None:
    folder = save(tmp_path / name, *getattr(models, name)())
    result = bringup("convert", "--checkpoint", folder, "--to", to, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert f"error[BU140]: the form `{to}` is not defined for `{name}`" in result.stderr


def test_sharded_state_of_gpt2(bringup: Bringup, tmp_path: Path) -> None:
    """Linear weights are [out, in]; the tied embedding is stored once, under the smaller of its names."""
    tensors, config = models.gpt2()
    folder = save(tmp_path / "gpt2", tensors, config)
    result = bringup("convert", "--checkpoint", folder, "--to", "sharded_state", "--tp", TP, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    for rank in range(TP):
        wanted = {"lm_head.weight": padded(tensors["wte.weight"], rank)}
        for name, array in tensors.items():
            if "c_attn" in name:
                wanted[f"transformer.{name}"] = fused(np.split(array.T, 3), rank)
            elif "c_fc" in name:
                wanted[f"transformer.{name}"] = column(array.T, rank, TP)
            elif "c_proj.weight" in name:
                wanted[f"transformer.{name}"] = row(array.T, rank, TP)
            elif name != "wte.weight":
                wanted[f"transformer.{name}"] = array
        equal(load_file(tmp_path / "out" / f"model-rank-{rank}-part-0.safetensors"), wanted)
