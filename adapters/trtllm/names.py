"""TensorRT-LLM's names of a family's parameters, and the keys of its config.json.

Format: docs/source/architecture/checkpoint.md and model-weights-loader.md of NVIDIA/TensorRT-LLM, and convert.py and
config.py of tensorrt_llm/models/{bloom,gpt,llama,qwen}, and layers/moe.py. Linear weights are [out, in]; q, k and v
are one matrix; `fc` is the gate and `gate` is up, but `fc` of experts has the rows of up before those of the gate;
layers are numbered from 0 in each pipeline stage; the embedding is complete on every rank, the head is divided and
padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bringup.adapters.algebra.expr import S, cat
from bringup.adapters.planning.adapter import Adapter
from bringup.diagnostics import fail

# TensorRT-LLM's names of the modules of a layer, and those of bringup's graphs.
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
# With experts in place of the MLP: their matrices, and what is concatenated along which axis.
MOE = {word: name for word, name in LLAMA.items() if not word.startswith("mlp.")} | {"mlp.router": "mlp.gate"}
EXPERTS = {
    "mlp.fc.weight": ("f", "mlp.experts.up_proj", "mlp.experts.gate_proj"),
    "mlp.proj.weight": ("", "mlp.experts.down_proj"),
}  # fmt: skip
SHARED = "mlp.shared_expert."
SHARED_EXPERT = {"shared_expert.fc.weight": ("out", f"{SHARED}up_proj.weight", f"{SHARED}gate_proj.weight")}
# Outside of layers.
ENDS = {"vocab_embedding": "model.embed_tokens", "ln_f": "model.norm"}
BLOOM_ENDS = {"vocab_embedding": "word_embeddings", "ln_embed": "word_embeddings_layernorm", "ln_f": "ln_f"}
GPT2_ENDS = {"vocab_embedding": "wte", "position_embedding": "wpe", "ln_f": "ln_f"}

# The keys of published configs for TensorRT-LLM's keys.
KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size", "max_position_embeddings": "max_position_embeddings", "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size", "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads", "num_key_value_heads": "num_key_value_heads",
    "head_size": "head_dim", "hidden_act": "hidden_act", "norm_epsilon": "rms_norm_eps", "rotary_base": "rope_theta",
    "rotary_scaling": "rope_scaling",
}  # fmt: skip
BLOOM_KEYS = {
    "max_position_embeddings": "seq_length", "intermediate_size": None, "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head", "num_key_value_heads": None, "head_size": None, "hidden_act": None,
    "norm_epsilon": "layer_norm_epsilon",
}  # fmt: skip
GPT2_KEYS = BLOOM_KEYS | {
    "max_position_embeddings": "n_positions", "hidden_size": "n_embd", "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
}  # fmt: skip
EXAONE_KEYS = {
    "num_hidden_layers": "num_layers", "hidden_act": "activation_function", "norm_epsilon": "layer_norm_epsilon"
}  # fmt: skip
EXPERT_KEYS: Mapping[str, str | None] = {"hidden_act": None, "moe_intermediate_size": "moe_intermediate_size"}
QWEN_KEYS = {
    "norm_epsilon": "layer_norm_epsilon", "head_size": "kv_channels", "rotary_base": "rotary_emb_base"
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of a family's parameters: `layers` has the modules of one, `ends` those around them.

    `attention` is the module whose q, k and v become one matrix; "" if they are one already. `architecture` is
    TensorRT-LLM's class for it; "" keeps the published name. `published` has the keys of the family's own config.json
    for TensorRT-LLM's keys, if they are not those of KEYS; None for a redundant key. `words` are keys that only
    TensorRT-LLM's config.json has, with their values. `merged` has an axis, and the parameters that are concatenated
    along it. `router` is a module that is stored in float32. `experts` has the published keys for those of `moe`, and
    `normalise` the one for its normalization of the weights of the selected experts, which are always normalised if
    there is no such key.
    """

    path: str = "model.layers"
    layers: Mapping[str, str]
    ends: Mapping[str, str]
    attention: str = "self_attn"
    architecture: str = ""
    position: str = "rope_gpt_neox"
    published: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    words: Mapping[str, object] = field(default_factory=dict[str, object])
    merged: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    router: str = ""
    experts: Mapping[str, str] = field(default_factory=dict[str, str])
    normalise: str = ""

    @property
    def keys(self) -> dict[str, str]:
        """TensorRT-LLM's keys, with the published ones."""
        return {word: key for word, key in {**KEYS, **self.published}.items() if key}


def _llama(published: Mapping[str, str | None], **words: object) -> Names:
    """A family whose parameters have Llama's names."""
    return Names(layers=LLAMA, ends=ENDS, published=published, words=words)


def _moe(
    published: Mapping[str, str | None], count: str = "num_experts", *, normalise: str = "norm_topk_prob",
    shared: bool = False, **words: object,
) -> Names:  # fmt: skip
    """Such a family with experts in every layer; `count` is the published key for their number.

    `shared`: there is a shared expert with a gate, as in Qwen2-MoE.
    """
    own = {"shared_expert.proj": f"{SHARED}down_proj", "shared_expert_gate": "mlp.shared_expert_gate"} if shared else {}
    return Names(
        layers=MOE | own, ends=ENDS, merged=EXPERTS | (SHARED_EXPERT if shared else {}), router="mlp.router",
        published={**EXPERT_KEYS, **published}, words={"hidden_act": "swiglu", **words},
        experts={"num_experts": count, "top_k": "num_experts_per_tok"}, normalise=normalise,
    )  # fmt: skip


NAMES: Mapping[str, Names] = {
    "bloom": Names(
        path="transformer.h", layers=BLOOM, ends={word: f"transformer.{name}" for word, name in BLOOM_ENDS.items()},
        attention="self_attention", architecture="BloomForCausalLM", position="alibi", published=BLOOM_KEYS,
    ),
    "exaone": _llama(EXAONE_KEYS),
    "gpt2": Names(
        path="transformer.h", layers=GPT2, ends={word: f"transformer.{name}" for word, name in GPT2_ENDS.items()},
        attention="", architecture="GPTForCausalLM", position="learned_absolute", published=GPT2_KEYS,
        words={"bias": True},
    ),
    "llama": _llama({"attn_bias": "attention_bias", "mlp_bias": "mlp_bias"}),
    "mixtral": _moe({"moe_intermediate_size": None}, "num_local_experts", normalise=""),
    "qwen": _llama(QWEN_KEYS, qwen_type="qwen"),
    "qwen2": _llama({}, qwen_type="qwen2"),
    "qwen2_moe": _moe(
        {"moe_shared_expert_intermediate_size": "shared_expert_intermediate_size"}, shared=True, qwen_type="qwen2_moe"
    ),
    "qwen3": _llama({"attn_bias": "attention_bias"}, qwen_type="qwen3", qk_layernorm=True),
    "qwen3_moe": _moe({"attn_bias": "attention_bias"}, qwen_type="qwen3_moe", qk_layernorm=True),
}  # fmt: skip


def names_of(family: str) -> Names:
    """A family's names. Raises BU140 if TensorRT-LLM's are not known."""
    if family in NAMES:
        return NAMES[family]
    help = f"{', '.join(sorted(NAMES))} have it; `--to graph` and `--to layout` serve every family"
    raise fail("BU140", f"the form `trtllm` is not defined for `{family}`", help=help)


def layout(family: str) -> Adapter:
    """TensorRT-LLM's names, as rules over the parameters of a built-in family."""
    table, names = Adapter("trtllm"), names_of(family)
    theirs, ours = "transformer.layers.{l:**}", f"{names.path}.{{l}}"
    if names.attention:
        qkv = (S(f"{ours}.{names.attention}.{x}_proj.{{w}}") for x in "qkv")
        table[f"{theirs}.attention.qkv.{{w:weight|bias}}"] = cat(*qkv, axis="out")
    for word, name in names.layers.items():
        table[f"{theirs}.{word}.{{w:weight|bias}}"] = S(f"{ours}.{name}.{{w}}")
    for word, (axis, *parts) in names.merged.items():
        sources = [S(f"{ours}.{part}") for part in parts]
        table[f"{theirs}.{word}"] = cat(*sources, axis=axis) if axis else sources[0]
    for word, name in names.ends.items():
        table[f"transformer.{word}.{{w:weight|bias}}"] = S(f"{name}.{{w}}")
    return table
