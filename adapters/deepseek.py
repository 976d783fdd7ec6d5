"""DeepSeek-V2, V3 and V3.2 as published: one tensor an expert and matrix; matrices may be in fp8."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.adapters.algebra.expr import Expr, S, stack
from bringup.adapters.algebra.per_layer import where
from bringup.adapters.algebra.values import dequant
from bringup.adapters.planning.adapter import Adapter, tied
from bringup.diagnostics import fail
from bringup.graphs.config.unquantized import UnquantizedModules
from bringup.graphs.deepseek import DeepseekConfig

PAYLOAD = "float8_e4m3fn"


def table(name: str, config: DeepseekConfig) -> Adapter:
    """What all have."""
    deepseek = Adapter(name, defaults=("out in", "vocab m"), prefix="model.")
    deepseek["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    deepseek["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    add_layers(deepseek, config)

    def of_draft(variables: Mapping[str, str]) -> bool:
        return 0 <= int(variables["L"]) - config.layers.stop < config.draft_layers

    why = "of the draft that predicts a further token (DeepSeek-V3 report §2.2): the model `deepseek_mtp`"
    deepseek.drop("layers.{L}.{rest:**}", why=why, when=of_draft, requires="layers.{L}.eh_proj.weight")
    return deepseek


def add_layers(deepseek: Adapter, config: DeepseekConfig) -> None:
    """The rules of layers, whether they are a model's or its draft's."""
    at = place(config)
    for n in ("input_layernorm", "post_attention_layernorm"):
        deepseek[f"model.layers.{{L}}.{n}.weight"] = S(f"{at}{n}.weight")
    _attention(deepseek, config)
    _experts(deepseek, config)
    for m, f in (("mlp", config.ffn), ("mlp.shared_experts", config.shared_experts * config.expert_ffn)):
        for x, shape in (("gate", (f, config.hidden)), ("up", (f, config.hidden)), ("down", (config.hidden, f))):
            deepseek[f"model.layers.{{L}}.{m}.{x}_proj.weight"] = matrix(config, f"{m}.{x}_proj", shape)
        deepseek[f"model.layers.{{L}}.{m}.{{x:gate|up|down}}_proj.bias"] = S(f"{at}{m}.{{x}}_proj.bias")
    deepseek.drop(f"{at}self_attn.rotary_emb.inv_freq", why="rope frequencies: computed from the config")


def place(config: DeepseekConfig) -> str:
    """Where a checkpoint has the layers: those of a model by their numbers, that of a draft past a model's last."""
    return f"layers.{config.layers.start}." if config.layers.start else "layers.{L}."


def _attention(deepseek: Adapter, config: DeepseekConfig) -> None:
    m, h, d = config.hidden, config.num_heads, config.plain_dim + config.head_dim
    q, c, n, v = config.q_rank or 0, config.kv_rank, config.plain_dim, config.value_dim
    target, at = "model.layers.{L}.self_attn.", place(config) + "self_attn."
    shapes = {"q": (h * d, m), "q_a": (q, m), "q_b": (h * d, q), "o": (m, h * v)}
    for x in ("q_a", "q_b", "o") if config.q_rank else ("q", "o"):
        deepseek[f"{target}{x}_proj.weight"] = matrix(config, f"self_attn.{x}_proj", shapes[x])
    latent = "kv_a_proj_with_mqa"
    deepseek[f"{target}{latent}.weight"] = matrix(config, f"self_attn.{latent}", (c + config.head_dim, m))
    deepseek[target + "{x:q_a_proj|kv_a_proj_with_mqa|o_proj}.bias"] = S(at + "{x}.bias")
    deepseek[target + "{x:q_a|kv_a}_layernorm.weight"] = S(at + "{x}_layernorm.weight")
    both = matrix(config, "self_attn.kv_b_proj", (h * (n + v), c), "(h x) c", x=n + v)
    parts = both.mv("(h x) c -> h x c", h=h).split("x", n, v)
    for x, axis, part in zip("kv", "nv", parts, strict=True):
        deepseek[f"{target}{x}_b_proj.weight"] = part.mv(f"h {axis} c -> (h {axis}) c")


def _experts(deepseek: Adapter, config: DeepseekConfig) -> None:
    m, f = config.hidden, config.expert_ffn
    target = "model.layers.{L}.mlp."
    deepseek[target + "gate.{p:weight|e_score_correction_bias}"] = S(place(config) + "mlp.gate.{p}")
    for x, shape, axes in (("gate", (f, m), "f m"), ("up", (f, m), "f m"), ("down", (m, f), "m f")):
        expert = matrix(config, f"mlp.experts.{{E}}.{x}_proj", shape, axes)
        deepseek[f"{target}experts.{x}_proj"] = stack(expert, over="E", n=config.routing.experts)


def matrix(config: DeepseekConfig, module: str, shape: tuple[int, int], axes: str = "out in", **sizes: int) -> Expr:
    """The weight of a layer's module; in fp8, payload times the scale of its block, but where the layer's is kept.

    `shape` says how many scales there are. Raises BU122 where some experts of a layer are kept and others are not.
    """
    at = place(config) + module
    weight = S(f"{at}.weight", axes, dtype="", **sizes)
    if config.fp8 is None:
        return weight
    payload = S(f"{at}.weight", axes, dtype=PAYLOAD, **sizes)
    rows, columns = (-(-size // of) for size, of in zip(shape, config.fp8.block, strict=True))
    scales = S(f"{at}.weight_scale_inv", "r k", dtype="float32", r=rows, k=columns)
    scaled = dequant(payload, scales, config.fp8.block, takes=(PAYLOAD,))
    unquantized = _unquantized_layers(config, module, config.fp8.unquantized) if config.fp8.unquantized else set[int]()
    if len(unquantized) in (0, len(config.layers)):
        return weight if unquantized else scaled
    return where("L", unquantized, weight, scaled)


def _unquantized_layers(config: DeepseekConfig, module: str, modules: UnquantizedModules) -> set[int]:
    found = set[int]()
    for number in config.layers:
        name = f"model.layers.{number}.{module}"
        of_experts = {
            name.format(E=index) in modules for index in range(config.routing.experts if "{E}" in name else 1)
        }
        if len(of_experts) > 1:
            message = f"`quantization_config` leaves `{name}` unquantized for some experts only"
            raise fail("BU122", message, help="a layer's experts are read as one array: quantise all of them, or none")
        found |= {number} if of_experts == {True} else set()
    return found
