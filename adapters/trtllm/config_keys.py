"""TensorRT-LLM's config.json: its keys from those of a published one, and back.

Settings without a key in TensorRT-LLM (sliding windows, tied embeddings, …) are under `published`; its own loader
preserves unknown keys (`PretrainedConfig`, tensorrt_llm/models/modeling_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.trtllm.names import NAMES, Names, names_of
from bringup.graphs.core.graph import Graph
from bringup.graphs.family import Family
from bringup.graphs.registry import FAMILIES

REST = "published"
RENORMALIZE, NO_NORMALISATION = 1, 0  # ExpertScaleNormalizationMode of tensorrt_llm/layers/moe.py
OF_EXPERTS = {"moe_intermediate_size": "expert_ffn", "moe_shared_expert_intermediate_size": "shared_ffn"}
# Of a rope without scaling: TensorRT-LLM has no such type (`RotaryScalingType` of tensorrt_llm/functional.py).
UNSCALED = (("rope_type", "default"), ("type", "default"))
COUNTS = {"num_experts", "num_local_experts"}  # transformers 5 writes either
# Keys of published configs that other keys of TensorRT-LLM express.
COVERED = {"architectures", "rope_parameters", "rope_scaling", "quantization_config", "torch_dtype", "dtype"}


def written(family: Family, graph: Graph, raw: Mapping[str, Any], parallel: Parallel) -> dict[str, Any]:
    """TensorRT-LLM's config.json for a graph that was created from `raw`, a published config.json.

    Sizes of experts are those of the graph. Any other size is the published one if there is one: the width of Qwen 1's
    MLP is the sum of gate's and up's.
    `architecture` is the published one, or the family's for a bare model, or if there is none. Raises BU140 for an
    unknown family.
    """
    ours: Any = graph.config
    names, heads = names_of(family.name), ours.num_heads
    rope: dict[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    scaling = {key: rope[key] for key in rope if key != "rope_theta" and (key, rope[key]) not in UNSCALED} or None
    is_rotary = names.position.startswith("rope")
    own = {
        "vocab_size": ours.vocab_size,
        "max_position_embeddings": round(ours.max_positions / (ours.rope.context_factor if is_rotary else 1)),
        "hidden_size": ours.hidden,
        "intermediate_size": getattr(ours, "ffn", 4 * ours.hidden),  # BLOOM's fixed width
        "num_hidden_layers": len(graph.layers),
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(ours, "num_kv_heads", heads),
        "head_size": ours.head_dim,
        "hidden_act": getattr(ours, "activation", "gelu"),
        "norm_epsilon": ours.eps,
    }
    own |= {word: getattr(ours, name) for word, name in OF_EXPERTS.items() if hasattr(ours, name) and names.experts}
    stated = {word: raw[key] for word, key in names.keys.items() if word in own and raw.get(key) is not None}
    covered = {*names.keys.values(), *COVERED, *(COUNTS if names.experts else ()), names.normalise}
    covered |= {*names.experts.values()}
    rest = {key: value for key, value in raw.items() if key not in covered}
    return {
        "architecture": names.architecture or _architecture(family, raw),
        "dtype": graph.dtype,
        "logits_dtype": "float32",
        **own,
        **stated,
        "position_embedding_type": names.position,
        **({"rotary_base": ours.rope.theta, "rotary_scaling": scaling} if is_rotary else {}),
        "attn_bias": _has(graph, "self_attn.q_proj.bias", "attn.c_attn.bias", "self_attention.q_proj.bias"),
        "mlp_bias": _has(graph, "mlp.gate_proj.bias", "mlp.c_fc.bias", "mlp.dense_h_to_4h.bias"),
        "qk_layernorm": False,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "share_embedding_table": False,
        "mapping": {
            "world_size": parallel.size,
            "tp_size": parallel.tp,
            "pp_size": parallel.pp,
            **_ranks(names, parallel),
        },
        **_experts(names, ours),
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        **names.words,
        **({REST: rest} if rest else {}),
    }


def _experts(names: Names, config: Any) -> dict[str, Any]:
    """The key `moe` of a family with experts (MoeConfig of tensorrt_llm/layers/moe.py)."""
    if not names.experts:
        return {}
    normalised = getattr(config, "normalise", True) if names.normalise else True
    sizes = {"num_experts": config.num_experts, "top_k": config.experts_per_token}
    return {"moe": {**sizes, "normalization_mode": RENORMALIZE if normalised else NO_NORMALISATION}}


def _ranks(names: Names, parallel: Parallel) -> dict[str, int]:
    """The division of experts: complete ones among `moe_ep_size` groups, their channels among the ranks of a group."""
    return {"moe_tp_size": parallel.tp // parallel.ep, "moe_ep_size": parallel.ep} if names.experts else {}


def _architecture(family: Family, raw: Mapping[str, Any]) -> str:
    """TensorRT-LLM has no classes of bare models (`LlamaModel`)."""
    known = [name for name in family.architectures if not name.endswith("Model") or name.endswith("LMHeadModel")]
    stated = raw.get("architectures") or ()
    return next((name for name in ([stated] if isinstance(stated, str) else stated) if name in known), known[0])


def _has(graph: Graph, *endings: str) -> bool:
    """Whether the graph has a parameter whose name ends in one of these."""
    return any(name.endswith(endings) for name in graph.signature())


def published(words: Mapping[str, Any]) -> dict[str, Any]:
    """The published config.json for TensorRT-LLM's, of any architecture."""
    architecture = words.get("architecture")
    names = _names(architecture)
    config: dict[str, Any] = {"architectures": [_published_name(architecture)]} if architecture else {}
    config |= {key: words[word] for word, key in names.keys.items() if words.get(word) is not None}
    moe = _mapping(words, "moe")
    config |= {key: moe[word] for word, key in names.experts.items() if moe.get(word) is not None}
    if names.normalise and "normalization_mode" in moe:
        config[names.normalise] = moe["normalization_mode"] == RENORMALIZE
    if algorithm := _mapping(words, "quantization").get("quant_algo"):
        config["quantization_config"] = {"quant_method": algorithm}
    return config | _mapping(words, REST)


def _mapping(words: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = words.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _names(architecture: object) -> Names:
    """The names of an architecture's family; Llama's for an unknown one."""
    for family in FAMILIES:
        if family.name in NAMES and _published_name(architecture) in family.architectures:
            return NAMES[family.name]
    return NAMES["llama"]


def _published_name(architecture: object) -> object:
    """The published name of a class of TensorRT-LLM: the same, unless a family has another class there."""
    for family in FAMILIES:
        if family.name in NAMES and NAMES[family.name].architecture == architecture:
            return family.architectures[0]
    return architecture
