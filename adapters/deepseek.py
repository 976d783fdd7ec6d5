"""The tensors of DeepSeek, GLM-5, Mistral 4 and Mistral Large 4: one for each matrix of each expert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bringup.adapters.algebra.expr import Expr, S, stack
from bringup.adapters.algebra.per_layer import where
from bringup.adapters.planning.adapter import Adapter, either, tied
from bringup.adapters.planning.drops import drop_rope_tables
from bringup.adapters.shared_experts import experts_at
from bringup.graphs.deepseek import DeepseekConfig


def table(name: str, config: DeepseekConfig, *, fused: bool = False) -> Adapter:
    """The rules that all of them share. `fused`: files may also have all experts in one tensor, see `_experts`."""
    deepseek = Adapter(name, defaults=("out in", "vocab m"), prefix="model.")
    deepseek["model.{n:embed_tokens|norm}.weight"] = S("{n}.weight")
    deepseek["lm_head.weight"] = tied(S("lm_head.weight"), S("embed_tokens.weight", "vocab m"), when=config.tied_head)
    add_layers(deepseek, config, fused=fused)

    def of_draft(variables: Mapping[str, str]) -> bool:
        return 0 <= int(variables["L"]) - config.layers.stop < config.draft_layers

    why = "of the draft that predicts a further token (DeepSeek-V3 report §2.2): the model `deepseek_mtp`"
    deepseek.drop("layers.{L}.{rest:**}", why=why, when=of_draft, requires="layers.{L}.eh_proj.weight")
    return deepseek


def add_layers(deepseek: Adapter, config: DeepseekConfig, *, fused: bool = False) -> None:
    """The rules of layers, those of a model or those of its draft."""
    at = place(config)
    for n in ("input_layernorm", "post_attention_layernorm"):
        deepseek[f"model.layers.{{L}}.{n}.weight"] = S(f"{at}{n}.weight")
    _attention(deepseek, config)
    _experts(deepseek, config, fused)
    for m in ("mlp", "mlp.shared_experts"):
        deepseek[f"model.layers.{{L}}.{m}.{{x:gate|up|down}}_proj.{{p:weight|bias}}"] = S(f"{at}{m}.{{x}}_proj.{{p}}")
    drop_rope_tables(deepseek, f"{at}self_attn.rotary_emb", "rotary_emb")


def place(config: DeepseekConfig) -> str:
    """The name of the layers in a checkpoint: those of a model by number, that of a draft after the model's last."""
    return f"layers.{config.layers.start}." if config.layers.start else "layers.{L}."


def _attention(deepseek: Adapter, config: DeepseekConfig) -> None:
    target, at = "model.layers.{L}.self_attn.", place(config) + "self_attn."
    queries = ("q_a_proj", "q_b_proj") if config.q_rank else ("q_proj",)
    for x in (*queries, "kv_a_proj_with_mqa", "o_proj"):
        deepseek[f"{target}{x}.weight"] = S(f"{at}{x}.weight")
    deepseek[target + "{x:q_a_proj|kv_a_proj_with_mqa|o_proj}.bias"] = S(at + "{x}.bias")
    deepseek[target + "{x:q_a|kv_a}_layernorm.weight"] = S(at + "{x}_layernorm.weight")
    parts = _keys_and_values(at, config, config.plain_dim)
    wider = _keys_and_values(at, config, config.plain_dim + config.head_dim)
    for x, part, wide in zip("kv", parts, wider, strict=True):
        deepseek[f"{target}{x}_b_proj.weight"] = where("L", config.unrotated, wide, part) if config.unrotated else part


def _keys_and_values(at: str, config: DeepseekConfig, n: int) -> Iterator[Expr]:
    """The matrices of keys, with n channels of each head, and of values: one tensor, head by head."""
    h, v = config.num_heads, config.value_dim
    both = S(at + "kv_b_proj.weight", "(h x) c", x=n + v).mv("(h x) c -> h x c", h=h)
    return (part.mv(f"h {axis} c -> (h {axis}) c") for part, axis in zip(both.split("x", n, v), "nv", strict=True))


def _experts(deepseek: Adapter, config: DeepseekConfig, fused: bool) -> None:
    """`fused`: the tensors [e, out, in] of all experts, gate and up one after the other (`Mistral4Experts`)."""
    target = "model.layers.{L}.mlp."
    whole = experts_at(place(config) + "mlp.experts.")
    deepseek[target + "gate.{p:weight|e_score_correction_bias}"] = S(place(config) + "mlp.gate.{p}")
    for x, axes in (("gate", "f m"), ("up", "f m"), ("down", "m f")):
        expert = S(f"{place(config)}mlp.experts.{{E}}.{x}_proj.weight", axes)
        each = stack(expert, over="E", n=config.routing.experts)
        deepseek[f"{target}experts.{x}_proj"] = either(whole[x], each) if fused else each
