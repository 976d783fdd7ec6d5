"""TensorRT-LLM's checkpoints: rankN.safetensors, and a config.json with the `mapping` of ranks.

Format: docs/source/architecture/checkpoint.md and model-weights-loader.md of NVIDIA/TensorRT-LLM, and convert.py and
config.py of tensorrt_llm/models/{bloom,gpt,llama,qwen}. Linear weights are [out, in]; q, k and v are one matrix; `fc`
is the gate and `gate` is up; layers are numbered from 0 in each pipeline stage; the embedding is whole, the head
divided and padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bringup.adapters.algebra.expr import S, cat
from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.apply.rank_plan import Stages
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.planning.plan import Plan
from bringup.compile.job import Job
from bringup.graphs.core.signature import Signature

LAYERS = Stages("transformer.layers")
# The names of TensorRT-LLM for the modules of a layer, and those of our graphs.
LLAMA = {
    "attention.dense": "self_attn.o_proj", "attention.q_layernorm": "self_attn.q_norm",
    "attention.k_layernorm": "self_attn.k_norm", "mlp.fc": "mlp.gate_proj", "mlp.gate": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj", "input_layernorm": "input_layernorm", "post_layernorm": "post_attention_layernorm",
}  # fmt: skip
BLOOM = {
    "attention.dense": "self_attention.dense", "mlp.fc": "mlp.dense_h_to_4h", "mlp.proj": "mlp.dense_4h_to_h",
    "input_layernorm": "input_layernorm", "post_layernorm": "post_attention_layernorm",
}  # fmt: skip
GPT2 = {
    "attention.qkv": "attn.c_attn", "attention.dense": "attn.c_proj", "mlp.fc": "mlp.c_fc", "mlp.proj": "mlp.c_proj",
    "input_layernorm": "ln_1", "post_layernorm": "ln_2",
}  # fmt: skip
# Outside of layers.
ENDS = {"vocab_embedding": "model.embed_tokens", "ln_f": "model.norm"}
BLOOM_ENDS = {"vocab_embedding": "word_embeddings", "ln_embed": "word_embeddings_layernorm", "ln_f": "ln_f"}
GPT2_ENDS = {"vocab_embedding": "wte", "position_embedding": "wpe", "ln_f": "ln_f"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How a family's parameters are called: `layers` has the modules of one, `ends` those around them.

    `attention` is the module whose q, k and v become one matrix; "" where they are one already. `architecture` is the
    class that TensorRT-LLM has for it; "" keeps the published name. `words` are those of its config.json only.
    """

    path: str = "model.layers"
    layers: Mapping[str, str]
    ends: Mapping[str, str]
    attention: str = "self_attn"
    architecture: str = ""
    position: str = "rope_gpt_neox"
    words: Mapping[str, object] = field(default_factory=dict[str, object])


def _qwen(kind: str, **words: object) -> Names:
    """A family of tensorrt_llm/models/qwen."""
    return Names(layers=LLAMA, ends=ENDS, words={"qwen_type": kind, **words})


NAMES: Mapping[str, Names] = {
    "bloom": Names(
        path="transformer.h", layers=BLOOM, ends={word: f"transformer.{name}" for word, name in BLOOM_ENDS.items()},
        attention="self_attention", architecture="BloomForCausalLM", position="alibi",
    ),
    "exaone": Names(layers=LLAMA, ends=ENDS),
    "gpt2": Names(
        path="transformer.h", layers=GPT2, ends={word: f"transformer.{name}" for word, name in GPT2_ENDS.items()},
        attention="", architecture="GPTForCausalLM", position="learned_absolute", words={"bias": True},
    ),
    "llama": Names(layers=LLAMA, ends=ENDS),
    "qwen": _qwen("qwen"),
    "qwen2": _qwen("qwen2"),
    "qwen3": _qwen("qwen3", qk_layernorm=True),
}  # fmt: skip
FAMILIES = frozenset(NAMES)


def layout(family: str) -> Adapter:
    """TensorRT-LLM's names, as rules over the parameters of a family of ours."""
    table, names = Adapter("trtllm"), NAMES[family]
    theirs, ours = "transformer.layers.{l:**}", f"{names.path}.{{l}}"
    if names.attention:
        qkv = (S(f"{ours}.{names.attention}.{x}_proj.{{w}}") for x in "qkv")
        table[f"{theirs}.attention.qkv.{{w:weight|bias}}"] = cat(*qkv, axis="out")
    for word, name in names.layers.items():
        table[f"{theirs}.{word}.{{w:weight|bias}}"] = S(f"{ours}.{name}.{{w}}")
    for word, name in names.ends.items():
        table[f"transformer.{word}.{{w:weight|bias}}"] = S(f"{name}.{{w}}")
    return table


def renumbered(plan: Plan, parallel: Parallel, rank: int, stages: Stages) -> Plan:
    """A rank's plan with the layers of its stage numbered from 0."""
    first = parallel.stages(stages.count)[parallel.rank(rank).stage].start if parallel.pp > 1 else 0

    def new(name: str) -> str:
        layer = LAYERS.layer(name)
        if layer is None:
            return name
        return name.replace(f"{LAYERS.path}.{layer}.", f"{LAYERS.path}.{layer - first}.", 1)

    entries = {new(name): entry for name, entry in plan.entries.items()}
    entries = {name: replace(entry, declared=replace(entry.declared, name=name)) for name, entry in entries.items()}
    return replace(plan, entries=entries, signature=Signature({n: e.declared for n, e in entries.items()}))


def config(job: Job, parallel: Parallel) -> dict[str, Any]:
    """The words of config.json. `architecture` is the published one's, LlamaForCausalLM where it has none."""
    ours: Any = job.graph.config  # of a family in FAMILIES
    words, names = job.config, NAMES[job.family.name]
    heads, head_dim = ours.num_heads, ours.head_dim
    rope: dict[str, Any] = words.get("rope_parameters") or words.get("rope_scaling") or {}
    rotary = {
        "rotary_base": rope.get("rope_theta", words.get("rope_theta", words.get("rotary_emb_base", 10000.0))),
        "rotary_scaling": {key: value for key, value in rope.items() if key != "rope_theta"} or None,
    }
    return {
        "architecture": names.architecture or next(iter(words.get("architectures") or ()), "LlamaForCausalLM"),
        "dtype": job.graph.dtype,
        "logits_dtype": "float32",
        "vocab_size": ours.vocab_size,
        "max_position_embeddings": ours.max_positions,
        "hidden_size": ours.hidden,
        "intermediate_size": getattr(ours, "ffn", 4 * ours.hidden),  # BLOOM has no other
        "num_hidden_layers": len(job.graph.layers),
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(ours, "num_kv_heads", heads),
        "head_size": head_dim,
        "hidden_act": getattr(ours, "activation", "gelu"),
        "norm_epsilon": ours.eps,
        "position_embedding_type": names.position,
        **(rotary if names.position.startswith("rope") else {}),
        "attn_bias": _has(job, "self_attn.q_proj.bias", "attn.c_attn.bias", "self_attention.q_proj.bias"),
        "mlp_bias": _has(job, "mlp.gate_proj.bias", "mlp.c_fc.bias", "mlp.dense_h_to_4h.bias"),
        "qk_layernorm": False,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "share_embedding_table": False,
        "mapping": {"world_size": parallel.size, "tp_size": parallel.tp, "pp_size": parallel.pp},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        **names.words,
    }


def _has(job: Job, *endings: str) -> bool:
    """Whether the graph has a parameter whose name ends so."""
    return any(name.endswith(endings) for name in job.graph.signature())
