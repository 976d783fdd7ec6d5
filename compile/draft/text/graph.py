"""The text of a drafted graph: a config class, settings of the public parts, and classes that these lack."""

from __future__ import annotations

import re
from textwrap import indent

from bringup.compile.draft.facts.classes import CLASSES, PARALLEL_LAYERS
from bringup.compile.draft.facts.facts import PUBLIC, Facts, bias_key
from bringup.compile.draft.facts.questions import comment, listed_layers
from bringup.compile.draft.text.attention import (
    LATENT,
    NAME,
    attention_class,
    own_attention,
    own_norms,
    plain_query_norm,
    wide_norms,
)
from bringup.compile.draft.text.config import config_text
from bringup.compile.draft.text.meaning import layer_ropes, scaled
from bringup.compile.draft.text.model import model_text
from bringup.shown import short

NORM_CHOICES = {
    "RMSNorm": "rounds before the product with the weight",
    "OnePlusRMSNorm": "multiplies by 1 + weight",
    "Float32RMSNorm": "rounds after the product",
    "ScaleNorm": "subtracts the mean too: layer normalisation without a bias",
}


NORMED = re.compile(
    r"(?:\w+ = |return )self\.\w+\(self\.ffn_sub_norm\(self\.act_fn\(self\.gate_proj\(x\)\) \* self\.up_proj\(x\)\)\)"
)


def graph_text(facts: Facts, read: frozenset[str] = frozenset()) -> str:
    """The file. `read` are keys that a first version of the text read when it was run."""
    config, layer = config_text(facts, read), _layer(facts)
    names = facts.norm, PARALLEL_LAYERS.get(facts.norms, ""), facts.shared
    names = *names, "HeadNorm" if own_norms(facts) else "", "NormedMLP" if facts.roles.has("mlp_norm") else ""
    names = *(["SigmoidMLP"] if facts.routing else []), *(["ScaledMLP"] if _factor(facts) else []), *names
    names = *names, "SoftmaxRouter" if facts.routing and facts.routing.least else ""
    names = *names, "ClampedExperts" if facts.hints.meaning and facts.hints.meaning.clamped else ""
    classes = [CLASSES[name] for name in names if name in CLASSES]
    if _factor(facts):
        others = classes.index(CLASSES["ScaledMLP"]) + 1
        classes[others:] = [text.replace("(SparseMLP)", "(ScaledMLP)") for text in classes[others:]]
    own = [text] if (text := attention_class(facts)) else []
    body = "\n\n".join([*classes, *own, config, layer])
    return (
        f'"""{facts.title}: a draft by `bringup init`. Lines with `# ?` are questions that tensors leave open."""\n\n'
        + (_imports(body) + "\n\n" + body)
    )


def _imports(body: str) -> str:
    used = [name for name in PUBLIC if _uses(body, name)]
    used += ["attention", "rope"] if "class Attention(GroupedAttention)" in body else []
    lines = "".join(f"    {name},\n" for name in sorted(used, key=lambda name: (not name.isupper(), name)))
    return (
        "from __future__ import annotations\n\n"
        f"from dataclasses import dataclass{', replace' if _uses(body, 'replace') else ''}\n"
        "from typing import ClassVar, Self\n\n"
        f"from bringup.graphs import (\n{lines})\n"
    )


def _uses(body: str, name: str) -> bool:
    return re.search(rf"(?<![\w.`]){name}\b(?!`)", body) is not None


def _bias(facts: Facts, part: str, field: str) -> str:
    has, key = bias_key(facts, part)
    return f"config.{field}" if key else str(has)


def _layer(facts: Facts) -> str:
    roles, norm = facts.roles, facts.norm
    settings = [f"bias={_bias(facts, 'qkv', 'attention_bias')}", f"out_bias={_bias(facts, 'o', 'out_bias')}"]
    if (roles.has("q_norm") and not own_norms(facts)) or plain_query_norm(facts):
        over = ', norm_over="projection"' if wide_norms(facts) else ""
        settings.append(f"qk_norm=config.eps, norm=self.norm{over}")
    settings += ["window=config.windows[index]", *(["sinks=True"] if roles.has("sinks", "") else [])]
    if facts.hints.meaning and {"scores", "scores root"} & facts.hints.meaning.factors.keys():
        settings.append("scale=config.query_scale")
    if facts.hints.meaning and facts.hints.meaning.score_cap:
        settings.append("softcap=config.score_cap")
    text = f"class {facts.title}(CausalLM):\n"
    if norm in NORM_CHOICES and facts.hints.norm is None:
        others = [f"{name}, which {why}" for name, why in NORM_CHOICES.items() if name != norm]
        text += comment(
            facts.ask("no shape shows the kind of norm", f"{norm}, which {NORM_CHOICES[norm]}", *others), "    "
        )
    text += f"    norm = {norm}\n\n"
    text += f"    def layer(self, config: {facts.title}Config, index: int):\n"
    text += "        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim\n"
    text += _recurrent(facts) + _unexplained(facts)
    joined = "".join(f"            {setting},\n" for setting in settings)
    own = own_attention(facts)
    kind = f"        attention = {NAME if own else 'GroupedAttention'}(\n            m, h, g, d,\n{joined}        )\n"
    text += LATENT.format(bias=_bias(facts, "qkv", "attention_bias")) if facts.sizes.latent else kind
    given = own.given if own and not facts.sizes.latent else {}
    text += "".join(f"        attention.{name} = {value}\n" for name, value in given.items())
    text += _mlp(facts)
    if layer := PARALLEL_LAYERS.get(facts.norms):
        if not facts.parallel and not (facts.hints.meaning and facts.hints.meaning.norms == "parallel"):
            question = facts.ask(
                "a layer has one norm: what does the MLP take?",
                "the normed input, in parallel with attention",
                "the sum after attention, without a norm",
            )
            text += comment(question)
        return f"{text}        return {layer}(m, config.eps, attention, mlp, norm=self.norm)\n{model_text(facts)}"
    rope = ", rope=int(config.windows[index] is not None)" if layer_ropes(facts) else ""
    residual = ", residual=config.residual_scale" if scaled(facts) else ""
    norms = "before" if facts.norms == "plain" else facts.norms
    layer = f'PreNormLayer(m, config.eps, attention, mlp, norm=self.norm, norms="{norms}"{rope}{residual})'
    return f"{text}        return {layer}\n{model_text(facts)}"


def _mlp(facts: Facts) -> str:
    """The lines that define `mlp`: for layers with and without experts, by the layer's index."""
    mlp_bias = _bias(facts, "mlp", "mlp_bias")
    widths = "config.expert_ffn, config.shared_ffn, " if facts.shared else "config.expert_ffn, "
    kinds_of_mlp = {
        "gated": f"GatedMLP(m, config.ffn, config.activation, bias={mlp_bias})",
        "normed": f"NormedMLP(m, config.ffn, config.activation, bias={mlp_bias}, norm=self.norm, eps=config.eps)",
        "plain": f"MLP(m, config.ffn, config.activation, bias={mlp_bias}, out_bias={mlp_bias})",
        "experts": f"{facts.shared or 'SparseMLP'}(\n            config.num_experts, m, {widths}config.activation,\n"
        "            per_token=config.experts_per_token, normalise=config.normalise,\n        )",
    }
    if facts.routing:
        kinds_of_mlp["experts"] = f"{facts.shared or 'SigmoidMLP'}(m, {widths}config.activation, config.routing)"
        if facts.routing.least:
            kinds_of_mlp["experts"] += "\n        mlp.gate = SoftmaxRouter(m, config.routing)"
            kinds_of_mlp["experts"] += "\n        mlp.gate.least = config.least"
    elif facts.mlp == "experts":
        if _factor(facts):
            kinds_of_mlp["experts"] = kinds_of_mlp["experts"].replace("SparseMLP(", "ScaledMLP(")
            kinds_of_mlp["experts"] += "\n        mlp.factor = config.expert_factor"
        kinds_of_mlp["experts"] += _biases(facts)
    kind = "normed" if facts.mlp == "gated" and facts.roles.has("mlp_norm") else facts.mlp
    mlp = f"        mlp = {kinds_of_mlp[kind]}\n"
    if facts.dense:
        mlp = f"        if config.sparse[index]:\n{indent(mlp, '    ')}"
        mlp += f"        else:\n            mlp = {kinds_of_mlp[facts.dense]}\n"
    return mlp


def _unexplained(facts: Facts) -> str:
    """Statements of transformers that a draft does not compute, a question for each class."""
    text, roles = "", facts.roles
    if facts.hints.meaning and facts.hints.meaning.routing and not facts.routing:
        text += comment(facts.ask("transformers' router computes sigmoid scores, which the draft does not"))
    if facts.hints.meaning and facts.hints.meaning.sinks != roles.has("sinks", ""):
        text += comment(facts.ask("transformers' attention and the tensors differ in whether there are sinks"))
    meaning = facts.hints.meaning
    text += _of_attention(facts)
    if meaning and meaning.inverse_rope and facts.sizes.latent:
        text += comment(facts.ask("transformers' rope rotates by minus the angle, and the draft's latents do not"))
    if meaning and meaning.clamped and facts.routing:
        text += comment(facts.ask("transformers' experts clamp the gate and up, and the draft's do not"))
    for name in without_tensors(facts):
        text += comment(facts.ask(f"transformers applies the norm `{name}`, for which there is no tensor"))
    for name, statements in (facts.hints.meaning.unexplained if facts.hints.meaning else {}).items():
        statements = [each for each in statements if not (roles.has("mlp_norm") and NORMED.fullmatch(each))]
        if not statements:
            continue
        more = f" and {len(statements) - 3} more" if len(statements) > 3 else ""
        lines = "; ".join(f"`{short(each)}`" for each in statements[:3])
        text += comment(facts.ask(f"transformers' {name} computes what the draft does not: {lines}{more}"))
    return text


def _recurrent(facts: Facts) -> str:
    """A question on layers with a convolution over tokens, whose state no part of a draft has."""
    convolutions = (each for each in facts.roles.rest if each.in_layers and len(each.shape) == 3 and each.shape[1] == 1)
    found = next(convolutions, None)
    if found is None:
        return ""
    where = "all layers" if len(found.layers) == facts.sizes.layers else f"layers {listed_layers(found.layers)}"
    what = f"{where} have a convolution over tokens, `{found.pattern}` {list(found.shape)}"
    return comment(facts.ask(f"{what}: drafts have none; write a `RecurrentLayer` for these, by `index`"))


def _of_attention(facts: Facts) -> str:
    """Questions on the gate of attention, and on the norms of each head."""
    text, roles, meaning = "", facts.roles, facts.hints.meaning
    if roles.has("o_gate") != bool(meaning and meaning.gate) and (meaning or roles.has("o_gate")):
        text += comment(facts.ask("is the result of attention multiplied by the sigmoid of a projection of the input?"))
    if own_norms(facts) and "RMS" in facts.norm:
        text += comment(facts.ask("each head has its own norm: is it layer normalisation, as in the draft?"))
    if roles.has("o_gate") and roles.has("o_norm"):
        text += comment(facts.ask("a gate and a norm precede the last matrix of attention: which is first?"))
    return text


def _factor(facts: Facts) -> bool:
    """Whether a key multiplies the sum of experts that softmax scores select."""
    meaning = facts.hints.meaning
    return facts.mlp == "experts" and not facts.routing and meaning is not None and "experts" in meaning.factors


def _biases(facts: Facts) -> str:
    """The lines that give experts and their router what `SparseMLP` has no setting for."""
    text, clamped = "", facts.hints.meaning.clamped if facts.hints.meaning else None
    bias = facts.roles.has("down", "bias")
    if facts.roles.has("router", "bias"):
        text += '\n        mlp.gate = Linear("out:e in:m", e=config.num_experts, m=m, bias=True)'
    if bias or clamped:
        kind = "ClampedExperts" if clamped else "Experts"
        text += (
            f"\n        mlp.experts = {kind}(config.num_experts, m, config.expert_ffn, config.activation, bias={bias})"
        )
    if clamped:
        text += "\n        mlp.experts.alpha, mlp.experts.limit = config.alpha, config.limit"
    return text


def without_tensors(facts: Facts) -> list[str]:
    """The norms that transformers' code calls and no tensor shows, if the draft does not compute them either."""
    meaning, roles = facts.hints.meaning, facts.roles
    if meaning is None:
        return []
    words = {word for each in (*roles.found.values(), *roles.rest) for word in each.module.split(".")}
    plain = facts.norms == "plain" and not roles.has("norm")  # every norm is one without a weight
    computed = {*meaning.norm_roles, "norm", meaning.embedding_norm, "q_norm", "k_norm"} if plain else set[str]()
    renamed = {name for name, role in (*meaning.norm_roles.items(), ("norm", "norm")) if roles.has(role)}
    return sorted(meaning.applied_norms - words - computed - renamed)
