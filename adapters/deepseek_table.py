"""DeepSeek-V2, V3 and V3.2 as published: one tensor an expert and matrix; matrices may be in fp8."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.adapters.expr import Expr, S, stack
from bringup.adapters.rules import Adapter, tied
from bringup.adapters.values import dequant
from bringup.graphs.deepseek_base import DeepseekConfig
from bringup.graphs.fp8 import Block


def table(name: str, config: DeepseekConfig) -> Adapter:
    """What all have. A matrix in fp8 is payload times the scale of its block."""
    deepseek = Adapter(name, defaults=("out in", "vocab m"), prefix="model.")
    deepseek["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    deepseek["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    layer = "model.layers.{L}."
    deepseek[layer + "{n:input_layernorm|post_attention_layernorm}.weight"] = S("layers.{L}.{n}.weight")
    _attention(deepseek, config)
    _experts(deepseek, config)
    for m, f in (("mlp", config.ffn), ("mlp.shared_experts", config.shared_experts * config.expert_ffn)):
        for x, shape in (("gate", (f, config.hidden)), ("up", (f, config.hidden)), ("down", (config.hidden, f))):
            at = f"layers.{{L}}.{m}.{x}_proj"
            deepseek[f"model.{at}.weight"] = matrix(at, shape, config.fp8)
        at = f"layers.{{L}}.{m}."
        deepseek[f"model.{at}{{x:gate|up|down}}_proj.bias"] = S(at + "{x}_proj.bias")
    deepseek.drop("layers.{L}.self_attn.rotary_emb.inv_freq", why="rope frequencies: computed from the config")

    def of_draft(variables: Mapping[str, str]) -> bool:
        return 0 <= int(variables["L"]) - len(config.sparse) < config.draft_layers

    why = "of the draft that predicts a further token (DeepSeek-V3 report §2.2)"
    deepseek.drop("layers.{L}.{rest:**}", why=why, when=of_draft)
    return deepseek


def _attention(deepseek: Adapter, config: DeepseekConfig) -> None:
    m, h, d = config.hidden, config.num_heads, config.plain_dim + config.head_dim
    q, c, n, v = config.q_rank or 0, config.kv_rank, config.plain_dim, config.value_dim
    at = "layers.{L}.self_attn."
    shapes = {"q": (h * d, m), "q_a": (q, m), "q_b": (h * d, q), "o": (m, h * v)}
    for x in ("q_a", "q_b", "o") if config.q_rank else ("q", "o"):
        deepseek[f"model.{at}{x}_proj.weight"] = matrix(f"{at}{x}_proj", shapes[x], config.fp8)
    latent = at + "kv_a_proj_with_mqa"
    deepseek[f"model.{latent}.weight"] = matrix(latent, (c + config.head_dim, m), config.fp8)
    deepseek[f"model.{at}{{x:q_a_proj|kv_a_proj_with_mqa|o_proj}}.bias"] = S(at + "{x}.bias")
    deepseek[f"model.{at}{{x:q_a|kv_a}}_layernorm.weight"] = S(at + "{x}_layernorm.weight")
    both = matrix(at + "kv_b_proj", (h * (n + v), c), config.fp8, "(h x) c", x=n + v)
    parts = both.mv("(h x) c -> h x c", h=h).split("x", n, v)
    for x, axis, part in zip("kv", "nv", parts, strict=True):
        deepseek[f"model.{at}{x}_b_proj.weight"] = part.mv(f"h {axis} c -> (h {axis}) c")


def _experts(deepseek: Adapter, config: DeepseekConfig) -> None:
    m, f = config.hidden, config.expert_ffn
    mlp = "layers.{L}.mlp."
    deepseek[f"model.{mlp}gate.{{p:weight|e_score_correction_bias}}"] = S(mlp + "gate.{p}")
    for x, shape, axes in (("gate", (f, m), "f m"), ("up", (f, m), "f m"), ("down", (m, f), "m f")):
        expert = matrix(f"{mlp}experts.{{E}}.{x}_proj", shape, config.fp8, axes)
        deepseek[f"model.{mlp}experts.{x}_proj"] = stack(expert, over="E", n=config.routing.experts)


def matrix(module: str, shape: tuple[int, int], fp8: Block | None, axes: str = "out in", **sizes: int) -> Expr:
    """A module's weight. `shape` says how many scales there are, where there are any."""
    weight = S(f"{module}.weight", axes, dtype="", **sizes)
    if fp8 is None:
        return weight
    rows, columns = (-(-size // of) for size, of in zip(shape, fp8, strict=True))
    return dequant(weight, S(f"{module}.weight_scale_inv", "r k", r=rows, k=columns), fp8)
