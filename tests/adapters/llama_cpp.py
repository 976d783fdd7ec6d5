"""GGUF files as llama.cpp's converter writes them, from folders that transformers saved; and the test of a dialect.

Tensor names are those of gguf-py (`tensor_mapping.py`), hyperparameters those that `convert_hf_to_gguf.py` writes for
every decoder (`TextModel.set_gguf_parameters`). The test passes those of its family.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file

from bringup.compile.check.checker import check_job
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from tests.models import family, parity

Config = Mapping[str, Any]
Tensors = dict[str, np.ndarray]
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")
PROMPT, COUNT = 8, 24  # tokens; COUNT are compared


def convert(
    folder: Path,
    out: Path,
    arch: gguf.MODEL_ARCH,
    *,
    tensors: Callable[[Tensors, Config], Tensors] = lambda tensors, config: tensors,
    words: Callable[[gguf.GGUFWriter, Config], None] = lambda writer, config: None,
    rename: Mapping[str, str] | None = None,
    stack: bool = True,
    kind: gguf.GGMLQuantizationType | None = None,
    blocks: gguf.GGMLQuantizationType | None = None,
    base: Callable[[gguf.GGUFWriter, Config], None] | None = None,
    called: str = "",
) -> Path:
    """A GGUF file of a transformers checkpoint.

    `tensors` changes values or layouts, by transformers' names, before they are renamed; `words` adds hyperparameters.
    `stack` puts a layer's experts in one tensor a matrix, as files since April 2024 have them. `rename` is for names
    that gguf-py does not list. Matrices are quantised to `kind`; arrays of uint8 are `blocks` already. `base` takes the
    place of `hyperparameters`, in families whose converter writes all of them itself. `called` is an architecture that
    gguf-py does not list yet, with the tensors of `arch`.
    """
    config: Config = json.loads((folder / "config.json").read_text("utf-8"))
    found = tensors(load_file(folder / "model.safetensors"), config)
    found = {name.replace("correction_bias", "correction.bias"): array for name, array in found.items()}
    writer = gguf.GGUFWriter(out, called or gguf.MODEL_ARCH_NAMES[arch])
    (base or hyperparameters)(writer, config)
    words(writer, config)
    writer.add_file_type(file_type(kind))
    layers = config.get("num_hidden_layers") or config.get("n_layer") or len(config["layers_block_type"])
    names = gguf.get_tensor_name_map(arch, layers)
    for name, array in (stacked(found) if stack else found).items():
        if not (new := (rename or {}).get(name) or names.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))):
            new = apart(name, names)
        if array.dtype == np.uint8:
            writer.add_tensor(new, array, raw_dtype=blocks)
        elif kind is not None and array.ndim > 1 and array.shape[-1] % 32 == 0:
            writer.add_tensor(new, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(new, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def file_type(kind: gguf.GGMLQuantizationType | None) -> gguf.LlamaFileType:
    """What `general.file_type` has for a file whose matrices are of a kind, float32 if None."""
    name = "ALL_F32" if kind in (None, gguf.GGMLQuantizationType.F32) else f"MOSTLY_{kind.name}"
    return next(each for each in gguf.LlamaFileType if each.name.startswith(name))  # of MXFP4: MOSTLY_MXFP4_MOE


def hyperparameters(writer: gguf.GGUFWriter, config: Config) -> None:
    """What `TextModel.set_gguf_parameters` writes, where config.json has it."""
    heads = config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if config.get("intermediate_size"):
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    if config.get("num_key_value_heads"):
        writer.add_head_count_kv(config["num_key_value_heads"])
    _rope(writer, config.get("rope_parameters") or {})
    if config.get("rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if experts := config.get("num_local_experts") or config.get("num_experts"):
        writer.add_expert_count(experts)
    if used := config.get("num_experts_per_tok"):
        writer.add_expert_used_count(used)
    if config.get("n_group"):
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])


def _rope(writer: gguf.GGUFWriter, rope: Config) -> None:
    if rope.get("rope_theta"):
        writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if rope.get("beta_fast") is not None:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def in_pairs(array: np.ndarray, heads: int) -> np.ndarray:
    """Rope halves of each head to rope pairs: llama.cpp's `permute`, written out index by index."""
    out = np.empty_like(array)
    size = len(array) // heads
    for head in range(heads):
        for channel in range(size):
            half, pair = divmod(channel, size // 2)
            out[head * size + 2 * pair + half] = array[head * size + channel]
    return out


def all_in_pairs(tensors: Tensors, config: Config) -> Tensors:
    """`in_pairs` of every q and k, as files of architecture `llama` have them."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found = {name: next((heads[x] for x in heads if f".{x}." in name), 0) for name in tensors}
    return {name: in_pairs(array, found[name]) if found[name] else array for name, array in tensors.items()}


def stacked(tensors: Tensors) -> Tensors:
    """The experts of a layer in one tensor a matrix."""
    out: Tensors = {}
    parts: dict[str, dict[int, np.ndarray]] = {}
    for name, array in tensors.items():
        if found := EXPERT.fullmatch(name):
            parts.setdefault(f"{found[1]}.{found[3]}", {})[int(found[2])] = array
        else:
            out[name] = array
    return out | {name: np.stack([of[at] for at in range(len(of))]) for name, of in parts.items()}


def apart(name: str, names: gguf.TensorNameMap) -> str:
    """The older name of one expert's matrix: `blk.0.ffn_gate.3.weight`."""
    found = EXPERT.fullmatch(name)
    whole = names.get_name(f"{found[1]}.{found[3]}", try_suffixes=(".weight",)) if found else None
    assert found, name
    assert whole, name
    return whole.replace("_exps.", f".{found[2]}.")


def assert_same_logits(folder: Path, file: Path, model: str | None = None) -> Job:
    """`check` has nothing to say of a GGUF file, and its logits are those of the folder that it was made from."""
    job = open_job(model, str(file))
    assert [finding.message for finding in check_job(job).findings] == []
    tokens = parity.random_tokens(COUNT, job.graph.config.vocab_size)
    wanted = family.stepwise(parity.load_reference(folder), tokens, PROMPT)
    parity.assert_near(family.eager_logits(job, tokens, PROMPT), wanted, "float32")
    return job


def assert_same_tokens(job: Job, folder: Path, out: Path, target: str = "cpu") -> None:
    """A bundle of a GGUF file gives the tokens that transformers gives for the folder that it was made from."""
    session = load(build(job, out=out, target=target, max_seq_len=64, buckets=(32,)))
    prompt = parity.random_tokens(PROMPT, job.graph.config.vocab_size)
    ids = torch.tensor([prompt])
    expected = parity.load_reference(folder).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT, min_new_tokens=COUNT, do_sample=False,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    assert list(session.generate(prompt, max_new_tokens=COUNT)) == expected[0, PROMPT:].tolist()
