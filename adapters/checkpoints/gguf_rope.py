"""The rope of a GGUF file, as keys of a config.json.

Keys: `rope.*` of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#llm. Two types of rope are stored as tensors
instead: `rope_freqs.weight` has the factors of Llama 3.1, `rope_factors_long.weight` and `rope_factors_short.weight`
those of LongRoPE (llama.cpp, convert_hf_to_gguf.py: `generate_extra_tensors`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bringup.adapters.checkpoints.gguf_config import Hyperparameters

PREFIX = "rope.scal"  # `rope.scaling.factor`; older files have `rope.scale_linear`
FREQS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
HIGH_FREQ_FACTORS = (4.0, 1.0)  # of Llama 3.1 and of Llama 4 Scout
SILENT = ("type", "finetuned")  # the first is read, the second does not affect the result
WORDS = {
    "original_context_length": "original_max_position_embeddings",
    "attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def rope_scaling(hyper: Hyperparameters, theta: Any) -> dict[str, Any] | None:
    """`rope_scaling`; None if positions are not scaled."""
    own = hyper.values
    if FREQS in hyper.tensors:
        return _llama3(hyper, theta)
    if LONG in hyper.tensors or SHORT in hyper.tensors:
        return _longrope(hyper)
    kind = own.get("rope.scaling.type", "linear" if "rope.scale_linear" in own else "none")
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": own.get("rope.scale_linear", 1.0), **_settings(own)}
    # llama.cpp never multiplies the context by the factor; if the file states no original context of rope, it uses the
    # context's length (`n_ctx_orig_yarn` of llama-model.cpp, `load_hparams`).
    scaling.setdefault("original_max_position_embeddings", own.get("context_length"))
    if kind == "yarn" and _number(scaling.get("attention_factor")) and _number(scaling["factor"]):
        # llama.cpp multiplies the factor that transformers' `attention_factor` replaces (ggml, `rope_yarn`)
        scaling["attention_factor"] *= 0.1 * math.log(max(scaling["factor"], 1.0)) + 1.0
    return scaling


def _settings(own: Mapping[str, Any]) -> dict[str, Any]:
    """Every `rope.scaling` key except the type, by config.json's key; unknown keys are unchanged."""
    names = {key.removeprefix("rope.scaling."): value for key, value in own.items() if key.startswith("rope.scaling.")}
    return {WORDS.get(name, name): value for name, value in names.items() if name not in SILENT}


def _longrope(hyper: Hyperparameters) -> dict[str, Any]:
    """LongRoPE's factors, one for each pair of channels."""
    long, short = hyper.numbers(LONG), hyper.numbers(SHORT)
    if long is None or short is None:
        return {"rope_type": f"the factors in {LONG} and {SHORT}"}  # no graph has this type: an error
    settings = {**_settings(hyper.values), "rope_type": "longrope"}
    settings.pop("original_max_position_embeddings", None)  # a separate key outside of rope's settings (Phi-3)
    return {**settings, "long_factor": list(long), "short_factor": list(short)}


def _llama3(hyper: Hyperparameters, theta: Any) -> dict[str, Any]:
    """The settings that define the factors in `rope_freqs.weight`, if they are those of Llama 3.1 to 3.3 or Llama 4.

    llama.cpp's converter computes the tensor from them and does not write the settings themselves.
    """
    unknown = {"rope_type": f"the factors in {FREQS}"}  # no graph has this type: an error
    stored = hyper.numbers(FREQS)
    if stored is None or not _number(theta) or theta <= 0:
        return unknown
    factor, low, positions = max(stored, default=0.0), 1.0, 8192

    def expected(index: int, high: float) -> float:
        turns = positions / (2 * math.pi) * theta ** (-index / len(stored))
        keep = min(max((turns - low) / (high - low), 0.0), 1.0) if low < high else float(turns > low)
        return 1 / (keep + (1 - keep) / factor)

    def fits(high: float) -> bool:
        return all(math.isclose(value, expected(at, high), rel_tol=1e-4) for at, value in enumerate(stored))

    high = next((high for high in HIGH_FREQ_FACTORS if fits(high)), None) if factor >= 1 else None
    if high is None:
        return unknown
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": positions,
    }


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
