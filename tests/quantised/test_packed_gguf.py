"""Each block type of GGUF that stays packed, in each place: transformers' logits of what gguf-py reads of blocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import DeepseekV2Config, LlamaConfig, MixtralConfig, Phi3Config

from bringup.adapters.algebra.gguf_forms import FORMS
from bringup.compile.job import Job, open_job
from bringup.compile.packed_job import pack_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.graphs.registry import FAMILIES
from tests.adapters import gguf_families, gguf_keys, gguf_tensors, llama_cpp, test_dialects
from tests.models import family, parity
from tests.quantised.gguf_blocks import calm_blocks

ARCH = gguf.MODEL_ARCH
PROMPT, COUNT = 9, 12


def alike(tensors: llama_cpp.Tensors, config: llama_cpp.Config) -> llama_cpp.Tensors:
    """What files have as transformers does."""
    return tensors


def whole_kv_b(tensors: llama_cpp.Tensors, config: llama_cpp.Config) -> llama_cpp.Tensors:
    """Keys' and values' matrices as transformers has them: the inverse of `gguf_tensors.split_kv_b`."""
    out = {name: array for name, array in tensors.items() if "k_b_proj" not in name and "v_b_proj" not in name}
    for name in (name for name in tensors if "k_b_proj" in name):
        keys, values = tensors[name].swapaxes(1, 2), tensors[name.replace("k_b_proj", "v_b_proj")]
        parts = [part for head in zip(keys, values, strict=True) for part in head]
        out[name.replace("k_b_proj", "kv_b_proj")] = np.concatenate(parts)
    return out


@dataclass(frozen=True, kw_only=True)
class Place:
    """A model of one layer, and ends of names of the parameters that a place in it has.

    `apart` gives tensors as the file cuts them, `whole` is its inverse; `moved` moves rows.
    """

    arch: gguf.MODEL_ARCH
    config: Any
    names: tuple[str, ...]
    words: gguf_families.Words = test_dialects.words
    apart: Callable[[llama_cpp.Tensors, llama_cpp.Config], llama_cpp.Tensors] = alike
    whole: Callable[[llama_cpp.Tensors, llama_cpp.Config], llama_cpp.Tensors] = alike
    moved: Callable[[llama_cpp.Tensors, llama_cpp.Config], llama_cpp.Tensors] = alike


# Blocks of the _k types are 256 columns, so all columns are.
SIZES: dict[str, Any] = {
    "vocab_size": 131, "num_hidden_layers": 1, "max_position_embeddings": 256, "hidden_size": 256,
    "intermediate_size": 256, "num_attention_heads": 4,
}  # fmt: skip
MLA: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 256, "kv_lora_rank": 256, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 256,
}  # fmt: skip
OF_ATTENTION = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight")
OF_MLP = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
OF_MLA = tuple(f"{x}.weight" for x in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "k_b_proj", "v_b_proj", "o_proj"))
PLACES: dict[str, Place] = {
    "dense projection": Place(
        arch=ARCH.LLAMA, config=LlamaConfig(**SIZES, num_key_value_heads=2), moved=llama_cpp.all_in_pairs,
        names=(*OF_ATTENTION, *OF_MLP),
    ),
    "fused qkv and gate-up": Place(
        arch=ARCH.PHI3, config=Phi3Config(**SIZES, num_key_value_heads=2, pad_token_id=0),
        names=(*OF_ATTENTION, *OF_MLP),
    ),
    "experts of MoE": Place(
        arch=ARCH.LLAMA, moved=llama_cpp.all_in_pairs,
        config=MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2),
        names=("experts.gate_proj", "experts.up_proj", "experts.down_proj"),
    ),
    "MLA": Place(
        arch=ARCH.DEEPSEEK2, config=DeepseekV2Config(**SIZES, **MLA, qk_nope_head_dim=256), names=OF_MLA,
        words=gguf_keys.deepseek, apart=gguf_tensors.split_kv_b, whole=whole_kv_b,
    ),
    "MLA of 2024": Place(  # keys' and values' matrix is one
        arch=ARCH.DEEPSEEK2, config=DeepseekV2Config(**SIZES, **MLA, qk_nope_head_dim=16), names=OF_MLA,
        words=gguf_keys.deepseek_of_2024,
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize(("dtype", "place"), [(d, p) for d in FORMS for p in PLACES], ids=lambda part: part)


def write(place: Place, dtype: str, folder: Path) -> tuple[Path, Path]:
    """A GGUF file of random blocks, and a folder of what gguf-py makes of them, as transformers has it."""
    exact = parity.save_checkpoint(place.config, folder / "exact")
    config, random = place.config.to_dict(), np.random.default_rng(0)
    stored = place.apart(load_file(exact / "model.safetensors"), config)
    values = dict(stored)
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    for name, array in stored.items():
        if array.ndim > 1 and not name.endswith(".gate.weight"):  # the converter leaves routers in floats
            stored[name] = calm_blocks(dtype, array.shape, random)
            values[name] = gguf.dequantize(stored[name], kind).reshape(array.shape)
    save_file(place.whole(values, config), exact / "model.safetensors", {"format": "pt"})
    blocks = folder / "blocks"
    blocks.mkdir()
    (blocks / "config.json").write_text((exact / "config.json").read_text("utf-8"), "utf-8")
    save_file(stored, blocks / "model.safetensors")
    options: dict[str, Any] = {"words": place.words, "tensors": place.moved, "blocks": kind}
    return llama_cpp.convert(blocks, folder / "m.gguf", place.arch, **options), exact


def opened(place: Place, dtype: str, folder: Path) -> tuple[Job, list[int], np.ndarray]:
    """The job of a file, tokens, and transformers' logits of them."""
    file, exact = write(place, dtype, folder)
    tokens = parity.random_tokens(COUNT, place.config.vocab_size)
    wanted = family.stepwise(parity.load_reference(exact), tokens, PROMPT)
    assert wanted.std() > 0.1
    return open_job(None, str(file)), tokens, wanted


@EACH
def test_logits(dtype: str, place: str, tmp_path: Path) -> None:
    job, tokens, wanted = opened(PLACES[place], dtype, tmp_path)
    packed = pack_job(job)
    assert not packed.floats
    assert all(any(name.endswith(end) for name in packed.names) for end in PLACES[place].names), packed.names
    ours = family.eager_logits(packed.job, tokens, PROMPT)
    family.assert_near(ours, wanted, "torch")


@pytest.mark.slow
@EACH
def test_logits_on_cpu(dtype: str, place: str, tmp_path: Path) -> None:
    job, tokens, wanted = opened(PLACES[place], dtype, tmp_path)
    options: dict[str, Any] = {"max_seq_len": COUNT, "buckets": (PROMPT,), "all_logits": True}
    bundle = build(job, out=tmp_path / "b", target="cpu", weights_form="packed", **options)
    family.assert_near(parity.run(load(bundle), tokens, PROMPT), wanted, "cpu")


def test_the_page_has_these_types_and_the_families_without() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/quantisation.md").read_text("utf-8").split())
    assert _listed(page, "of these types: ") == {*FORMS}
    assert _listed(page, "have no table for GGUF: ") == {family.name for family in FAMILIES if not family.dialect}


def _listed(page: str, words: str) -> set[str]:
    """The names after `words`, with commas between."""
    found = re.search(rf"{words}(\w+(?:, \w+)*)", page)
    assert found
    return {*found[1].split(", ")}
