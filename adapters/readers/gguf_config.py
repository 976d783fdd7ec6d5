"""GGUF metadata in the words of a Hugging Face config.json.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#llm and LLM_KV_NAMES in llama.cpp's
`llama-arch.cpp`. A hyperparameter without a word in config.json keeps its own name (`llama.logit_scale`), so
that the graph's config refuses what it does not implement.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup.adapters.readers.gguf import MOST_NAME, Metadata, bad_header, oversized
from bringup.diagnostics import fail
from bringup.spec import TensorInfo

LLAMA = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
}
NEEDED = ("embedding_length", "feed_forward_length", "block_count", "attention.head_count", "context_length")
TOKENS = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}
# What converters write beside a model's hyperparameters: none of these changes a number.
SILENT = {"rope.scaling.finetuned", "tensor_data_layout"}
FREQS = "rope_freqs.weight"
MOST_NUMBERS = 1 << 12  # in a hyperparameter: one a layer, or one a pair of a head's channels


def config_from_metadata(meta: Metadata, tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """A config.json's words for a `llama` file; other architectures keep llama.cpp's. Raises BU221, BU224, BU225."""
    family = meta.scalar("general.architecture")
    if not isinstance(family, str) or len(family) > MOST_NAME:
        raise bad_header(meta.path, "`general.architecture` is not the name of an architecture")
    keys = [key for key in meta if key.startswith(f"{family}.")]
    if long := [key for key in keys if (meta.count(key) or 0) > MOST_NUMBERS]:
        raise oversized(meta.path, f"{meta.count(long[0]):,} elements under `{long[0]}`; {MOST_NUMBERS:,} is the most")
    own = {key.removeprefix(f"{family}."): _tidy(meta[key]) for key in keys}
    ids = {word: meta.scalar(key) for key, word in TOKENS.items() if key in meta}
    if family != "llama":
        return {"architectures": [f"{family} (GGUF)"], **own, **ids}
    _check_needed(own, meta.path)
    moe = bool(own.get("expert_count"))
    config: dict[str, Any] = {
        "architectures": ["MixtralForCausalLM" if moe else "LlamaForCausalLM"],
        "model_type": "mixtral" if moe else "llama",
        "hidden_act": "silu",
        "rope_theta": 10000.0,  # llama.cpp's default; converters leave it out
        "vocab_size": meta.count("tokenizer.ggml.tokens") or _rows(tensors, "token_embd.weight"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
    }
    config |= {word: own[key] for key, word in LLAMA.items() if own.get(key)}  # zero says: none of these
    if scaling := _rope_scaling(own, config["rope_theta"], meta.path, tensors.get(FREQS)):
        config["rope_scaling"] = scaling
    return config | ids | {f"llama.{key}": value for key, value in _rest(own, config).items()}


def _check_needed(own: Mapping[str, Any], path: Path) -> None:
    wrong = [f"llama.{key}" for key in NEEDED if type(own.get(key)) is not int or own[key] < 1]
    if wrong:
        raise fail(
            "BU224",
            f"`{path}` needs a whole number in its metadata under {', '.join(f'`{key}`' for key in wrong)}",
            help="convert the model again, or add the keys with gguf-set-metadata (package gguf)",
            file=str(path),
        )


def _rest(own: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters that `config` does not say yet."""
    width = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    widths = {"rope.dimension_count", "attention.value_length"}
    said = {*LLAMA, *SILENT} | {key for key in widths if own.get(key) == width}
    return {key: value for key, value in own.items() if key not in said and not key.startswith("rope.scal")}


def _rope_scaling(own: Mapping[str, Any], theta: float, path: Path, freqs: TensorInfo | None) -> dict[str, Any] | None:
    """`rope_scaling`, from the `rope.scaling` keys or from the tensor of factors in Llama 3.1 files."""
    kind = own.get("rope.scaling.type", "linear" if "rope.scale_linear" in own else "none")
    if freqs is not None:
        return _llama3(path, freqs, theta)
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": own.get("rope.scale_linear", 1.0)}
    words = {"original_context_length": "original_max_position_embeddings", "attn_factor": "attention_factor"}
    for key, value in own.items():
        name = key.removeprefix("rope.scaling.")
        if name != key and name not in ("type", "finetuned"):
            scaling[words.get(name, name)] = value
    # llama.cpp never counts the factor into the context, and takes its length for rope's origin: `n_ctx_orig_yarn`
    # of its llama-model.cpp (`load_hparams`), which a file may state otherwise.
    scaling.setdefault("original_max_position_embeddings", own["context_length"])
    return scaling


def _llama3(path: Path, info: TensorInfo, theta: float) -> dict[str, Any]:
    """The settings whose factors a file's `rope_freqs.weight` holds, if they are those of Llama 3.1 to 3.3.

    llama.cpp's converter computes the tensor from them and does not write the settings themselves
    (convert_hf_to_gguf.py, `LlamaModel.generate_extra_tensors`).
    """
    unknown = {"rope_type": f"the factors in {FREQS}"}  # no graph has this type: refused, not guessed
    if info.dtype != "float32" or info.nbytes > 4 * MOST_NUMBERS:
        return unknown
    with path.open("rb") as file:
        file.seek(info.offset)
        stored = struct.unpack(f"<{info.nbytes // 4}f", file.read(info.nbytes // 4 * 4))
    factor, low, high, positions = max(stored, default=0.0), 1.0, 4.0, 8192

    def expected(index: int) -> float:
        turns = positions / (2 * math.pi) * theta ** (-index / len(stored))
        keep = min(max((turns - low) / (high - low), 0.0), 1.0)
        return 1 / (keep + (1 - keep) / factor)

    close = (math.isclose(value, expected(index), rel_tol=1e-4) for index, value in enumerate(stored))
    if factor < 1 or not all(close):
        return unknown
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": positions,
    }


def _rows(tensors: Mapping[str, TensorInfo], name: str) -> int | None:
    return tensors[name].shape[0] if name in tensors and tensors[name].shape else None


def _tidy(value: object) -> Any:
    """A float32 as the shortest decimal that rounds to it: 1e-05, not 9.999999747378752e-06."""
    if not isinstance(value, float) or not abs(value) < 1e38:
        return value
    stored = struct.pack("<f", value)
    wide = struct.unpack("<f", stored)[0] != value  # a float64 in the file
    short = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return value if wide else next(number for number in short if struct.pack("<f", number) == stored)
