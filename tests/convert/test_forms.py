"""Ranks of what is not stored as the graph has it: a target's buffers, GGUF blocks, float8 blocks."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import DeepseekV3Config

import bringup
from bringup import adapt, open_job
from tests.check.mutations.bases import base
from tests.check.quantised_forms import FORMS, quantised
from tests.cli.conftest import Bringup
from tests.convert import by_hand, models
from tests.convert.test_convert import equal, save
from tests.models import parity
from tests.targets.test_numpy_fused import installed

__all__ = ["installed"]


def test_the_buffers_of_a_target(installed: ModuleType, bringup: Bringup, tmp_path: Path) -> None:
    """q, k and v of a rank side by side, as its target's layout has them."""
    tensors, config = models.llama()
    folder = save(tmp_path / "llama", tensors, config)
    words = ["--to", "layout", "--target", "numpy-fused", "--tp", 2]
    result = bringup("convert", "--checkpoint", folder, *words, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    for rank in range(2):
        part = by_hand.llama(tensors, rank, tp=2, pp=1, heads=2, layers=2)
        for layer in range(2):
            p = f"model.layers.{layer}."
            for w in ("weight", "bias"):
                qkv = [part.pop(f"{p}self_attn.{x}_proj.{w}") for x in "qkv"]
                both = [part.pop(f"{p}mlp.{x}_proj.{w}") for x in ("gate", "up")]
                part[f"{p}self_attn.qkv_proj.{w}"] = np.concatenate(qkv)
                part[f"{p}mlp.gate_up_proj.{w}"] = np.concatenate(both)
        equal(load_file(tmp_path / "out" / f"rank{rank}.safetensors"), part)


# Two shared experts of width 8, and 4 routed ones.
SHARED = DeepseekV3Config(
    vocab_size=40, hidden_size=16, intermediate_size=24, moe_intermediate_size=8, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4,
    qk_rope_head_dim=4, v_head_dim=4, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2, n_group=2,
    topk_group=1, first_k_dense_replace=1,
)  # fmt: skip


def six_experts(tensors: dict[str, np.ndarray], x: str) -> list[np.ndarray]:
    """The routed experts' matrices, then those of the shared ones."""
    layer = "model.layers.1.mlp."
    routed = [tensors[f"{layer}experts.{e}.{x}_proj.weight"] for e in range(4)]
    return [*routed, *np.split(tensors[f"{layer}shared_experts.{x}_proj.weight"], 2, axis=x == "down")]


@pytest.mark.parametrize("tp", [1, 2])
def test_shared_experts_follow_the_routed_ones(bringup: Bringup, tmp_path: Path, tp: int) -> None:
    """Two shared experts of width 8 after 4 routed ones, from the tensors of transformers; a rank has half of each."""
    source = parity.save_checkpoint(SHARED, tmp_path / "source")
    place = ["--checkpoint", source, "--to", "fused", "--tp", tp, "-o", tmp_path / "out"]
    result = bringup("convert", *place)
    assert result.exit_code == 0, result.output
    tensors, layer = load_file(source / "model.safetensors"), "model.layers.1.mlp."
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) == tp
    for rank, file in enumerate(files):
        found = load_file(file)
        assert not any("shared_experts" in name for name in found)
        half = slice(rank * 8 // tp, (rank + 1) * 8 // tp)
        for x in ("gate", "up", "down"):
            wanted = np.stack([w[:, half] if x == "down" else w[half] for w in six_experts(tensors, x)])
            np.testing.assert_array_equal(found[f"{layer}experts.{x}_proj"], wanted)
        rows = slice(rank * 24 // tp, (rank + 1) * 24 // tp)
        dense = [tensors[f"model.layers.0.mlp.{x}_proj.weight"][rows] for x in ("gate", "up")]
        np.testing.assert_array_equal(found["model.layers.0.mlp.gate_up_proj.weight"], np.concatenate(dense))
        equal(found, adapt(open_job(checkpoint=source), tp=tp, rank=rank, to="fused"))


@pytest.mark.parametrize(
    ("words", "held"),
    [
        (("--ep", 2), [[0, 1, 2], [3, 4, 5]]),
        (("--tp", 2, "--ep", 2), [[0, 1, 2], [3, 4, 5]]),
        (("--ep", 3), [[0, 1], [2, 3], [4, 5]]),
        (("--ep", 2, "--redundant-experts", 2), [[0, 1, 2, 3], [4, 5, 0, 1]]),
    ],
)
def test_shared_experts_are_divided_with_the_routed_ones(
    bringup: Bringup, tmp_path: Path, words: tuple[object, ...], held: list[list[int]]
) -> None:
    source = parity.save_checkpoint(SHARED, tmp_path / "source")
    result = bringup("convert", "--checkpoint", source, "--to", "fused", *words, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    tensors = load_file(source / "model.safetensors")
    for rank, experts in enumerate(held):
        found = load_file(tmp_path / "out" / f"rank{rank}.safetensors")
        for x in ("gate", "up", "down"):
            wanted = np.stack([six_experts(tensors, x)[expert] for expert in experts])
            np.testing.assert_array_equal(found[f"model.layers.1.mlp.experts.{x}_proj"], wanted)


def test_six_experts_for_four_ranks(bringup: Bringup, tmp_path: Path) -> None:
    source = parity.save_checkpoint(SHARED, tmp_path / "source")
    result = bringup("convert", "--checkpoint", source, "--to", "fused", "--ep", 4, "-o", tmp_path / "out")
    assert "axis `e` of size 6 does not divide among 4 ranks" in result.output, result.output
    assert not (tmp_path / "out").exists()


def write_gguf(path: Path) -> Path:
    """Random values; feed-forward in q8_0, so that a rank's columns are parts of dequantised rows."""
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    m, f, heads, groups, vocab = 64, 96, 4, 2, 33
    rng, writer = np.random.default_rng(0), GGUFWriter(str(path), "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(m)
    writer.add_block_count(1)
    writer.add_feed_forward_length(f)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    shapes = {"token_embd": (vocab, m), "output": (vocab, m), "output_norm": (m,)}
    rows = {"attn_q": (m, m), "attn_k": (m // 2, m), "attn_v": (m // 2, m), "attn_output": (m, m)}
    rows |= {"ffn_gate": (f, m), "ffn_up": (f, m), "ffn_down": (m, f), "attn_norm": (m,), "ffn_norm": (m,)}
    for name, shape in {**shapes, **{f"blk.0.{name}": shape for name, shape in rows.items()}}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        if "ffn_" in name and len(shape) == 2:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{name}.weight", quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file(bringup: Bringup, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    for rank, words in enumerate([[], ["--tp", 2]]):
        out = tmp_path / f"out{rank}"
        result = bringup("convert", "--checkpoint", path, *words, "-o", out)
        assert result.exit_code == 0, result.output
    whole = load_file(tmp_path / "out0" / "model.safetensors")
    for rank in range(2):
        part = load_file(tmp_path / "out1" / f"rank{rank}.safetensors")
        equal(part, by_hand.llama(whole, rank, tp=2, pp=1, heads=2, layers=1))
    refused = bringup("export", "--checkpoint", path, "-o", tmp_path / "back")
    assert "error[BU143]" in refused.stderr


def deepseek_fp8() -> Any:
    from bringup.adapters.checkpoints.memory import dict_checkpoint

    draft, form = base("deepseek_v3"), FORMS["fp8-blocks"]
    config = draft.config | {"quantization_config": form.words}
    return bringup.open_job(None, dict_checkpoint(quantised(draft.tensors, form), config))


def test_float8_blocks() -> None:
    """Latent projections are on every rank, heads are divided, experts whole; values are those of the whole model."""
    job = deepseek_fp8()
    whole = bringup.adapt(job)
    heads, experts = job.config["num_attention_heads"], job.config["n_routed_experts"]
    for rank in range(2):
        part = bringup.adapt(job, tp=2, ep=2, rank=rank)
        assert part.keys() == whole.keys()
        for name, array in part.items():
            w = whole[name]
            if name.endswith(("q_b_proj.weight", "k_b_proj.weight", "v_b_proj.weight", "q_proj.weight")):
                assert w.shape[0] % heads == 0
                w = by_hand.column(w, rank, 2)
            elif "mlp.experts." in name:
                w = w[rank * experts // 2 : (rank + 1) * experts // 2]
            elif name.endswith(("gate_proj.weight", "up_proj.weight")):
                w = by_hand.column(w, rank, 2)
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                w = by_hand.row(w, rank, 2)
            elif "embed_tokens" in name or "lm_head" in name:
                w = by_hand.vocabulary(w, rank, 2)
            np.testing.assert_array_equal(array, w, name)


def test_float8_blocks_do_not_come_back(tmp_path: Path, bringup: Bringup) -> None:
    draft, form = base("deepseek_v3"), FORMS["fp8-blocks"]
    folder = tmp_path / "fp8"
    folder.mkdir()
    from safetensors.numpy import save_file

    save_file(
        {name: np.ascontiguousarray(w) for name, w in quantised(draft.tensors, form).items()},
        folder / "model.safetensors",
    )
    words = draft.config | {"quantization_config": form.words}
    (folder / "config.json").write_text(json.dumps(words), "utf-8")
    result = bringup("export", "--checkpoint", folder, "-o", tmp_path / "back")
    assert result.exit_code == 1, result.output
    assert "error[BU117]" in result.stderr
    assert "dequantise FP8 with one scale a block" in result.stderr
    assert not (tmp_path / "back").exists()
