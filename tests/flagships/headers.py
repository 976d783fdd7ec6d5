"""A full-size checkpoint of which only the headers are real: names and shapes as transformers saves them, on meta.

transformers has neither the quantised forms nor the draft layers of the published files. Both follow rules that the
publishers state; the published numbers of tensors and bytes confirm them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from tests.flagships.published import Flagship

Shape = tuple[int, ...]
Tensors = dict[str, tuple[str, Shape]]  # safetensors' dtype, and shape

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4, "U8": 1}  # bytes
BLOCK = 128  # rows and columns that share a scale in DeepSeek's files
MX = 32  # values that share a scale in MXFP4
WHOLE = ("norm", "embed_tokens", "lm_head", "eh_proj", "shared_head", "gate.", "weights_proj")  # DeepSeek has no fp8 of


def tensors_of(flagship: Flagship) -> Tensors:
    """Every tensor of the published files."""
    tensors = float_tensors(flagship.config)
    change = {"bloom": bare, "deepseek_v3": fp8, "deepseek_v32": fp8, "gpt_oss": mxfp4}
    model_type = flagship.config["model_type"]
    return change[model_type](tensors) if model_type in change else tensors


def float_tensors(config: dict[str, object]) -> Tensors:
    """Every tensor of the model before it is quantised."""
    shapes = saved(config)
    if config.get("num_nextn_predict_layers"):
        shapes |= draft_layer(shapes, config["num_hidden_layers"], config["hidden_size"], config["vocab_size"])
    return {name: ("F32" if "e_score_correction_bias" in name else "BF16", shape) for name, shape in shapes.items()}


def saved(config: dict[str, object]) -> dict[str, Shape]:
    """What `save_pretrained` would write of a model with these words, by transformers' own conversion."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    words = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    hf_config = AutoConfig.for_model(config["model_type"], **words)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf_config)
    state = revert_weight_conversion(model, model.state_dict())
    tied = () if hf_config.tie_word_embeddings is False else model.all_tied_weights_keys
    return {name: tuple(tensor.shape) for name, tensor in state.items() if name not in tied}


def draft_layer(shapes: dict[str, Shape], layers: int, m: int, vocab: int) -> dict[str, Shape]:
    """The layer past the last one, that predicts a further token: the parts of DeepSeek-V3's README_WEIGHTS.md."""
    last, at = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    layer = {at + name.removeprefix(last): shape for name, shape in shapes.items() if name.startswith(last)}
    own = {"enorm": (m,), "hnorm": (m,), "eh_proj": (m, 2 * m), "embed_tokens": (vocab, m), "shared_head.norm": (m,)}
    own["shared_head.head"] = (vocab, m)
    return layer | {f"{at}{name}.weight": shape for name, shape in own.items()}


def fp8(tensors: Tensors) -> Tensors:
    """DeepSeek's: matrices in e4m3, a float32 scale for each 128 x 128 block beside them (README_WEIGHTS.md)."""
    quantised: Tensors = {}
    for name, (dtype, shape) in tensors.items():
        if len(shape) == 2 and not any(part in name for part in WHOLE):
            rows, columns = (math.ceil(size / BLOCK) for size in shape)
            quantised |= {name: ("F8_E4M3", shape), f"{name}_scale_inv": ("F32", (rows, columns))}
        else:
            quantised[name] = dtype, shape
        if "indexer.k_norm" in name:  # of float32 in the reference's code, inference/model.py
            quantised[name] = "F32", shape
    return quantised


def mxfp4(tensors: Tensors) -> Tensors:
    """GPT-OSS's: experts [e, in, out] as blocks [e, out, in / 32, 16] of two values a byte, with a byte of scale."""
    quantised: Tensors = {}
    for name, (dtype, shape) in tensors.items():
        if len(shape) == 3:
            e, n_in, out = shape
            quantised[f"{name}_blocks"] = "U8", (e, out, n_in // MX, MX // 2)
            quantised[f"{name}_scales"] = "U8", (e, out, n_in // MX)
        else:
            quantised[name] = dtype, shape
    return quantised


def bare(tensors: Tensors) -> Tensors:
    """BLOOM's files were saved from the model without its head."""
    return {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}


def nbytes(tensors: Tensors) -> int:
    return sum(SIZES[dtype] * math.prod(shape) for dtype, shape in tensors.values())


def write(folder: Path, flagship: Flagship, tensors: Tensors, config: dict[str, object] | None = None) -> Path:
    """Sparse shards of about equal size, their index, and config.json, in the form in which libraries write JSON.

    The config is the flagship's unless another is given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = flagship.shard_names()
    most = math.ceil(nbytes(tensors) / len(names))
    shards: list[Tensors] = [{} for _ in names]
    done = 0
    for name, tensor in tensors.items():
        shards[done // most][name] = tensor
        done += nbytes({name: tensor})
    index = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
    for file, shard in zip(names, shards, strict=True):
        _write_shard(folder / file, shard)
    whole = {"metadata": {"total_size": done}, "weight_map": dict(sorted(index.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(whole, indent=2), "utf-8")
    (folder / "config.json").write_text(json.dumps(flagship.config if config is None else config), "utf-8")
    return folder


def _write_shard(path: Path, tensors: Tensors) -> None:
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + nbytes({name: (dtype, shape)})
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
