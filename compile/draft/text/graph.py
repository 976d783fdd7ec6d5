"""The text of a drafted graph: a config class, settings of the public parts, and classes that these lack."""

from __future__ import annotations

from textwrap import indent

from bringup.compile.draft.facts.classes import CLASSES, PARALLEL_LAYERS
from bringup.compile.draft.facts.facts import PUBLIC, Facts, bias_key
from bringup.compile.draft.facts.questions import comment
from bringup.compile.draft.text.config import config_text
from bringup.compile.draft.text.meaning import layer_ropes, logit_sign, scaled
from bringup.shown import short

NORM_CHOICES = {
    "RMSNorm": "rounds before the product with the weight",
    "OnePlusRMSNorm": "multiplies by 1 + weight",
    "Float32RMSNorm": "rounds after the product",
    "ScaleNorm": "subtracts the mean too: layer normalisation without a bias",
}


def graph_text(facts: Facts, read: frozenset[str] = frozenset()) -> str:
    """The file. `read` are keys that a first version of the text read when it was run."""
    config, layer = config_text(facts, read), _layer(facts)
    names = facts.norm, PARALLEL_LAYERS.get(facts.norms, ""), facts.shared, *attentions(facts)
    names = *names, "ScaledLayer" if scaled(facts) else ""
    names = *(["SigmoidMLP"] if facts.routing else []), *names
    classes = [CLASSES[name] for name in names if name in CLASSES]
    body = "\n\n".join([*classes, config, layer])
    return (
        f'"""{facts.title}: a draft by `bringup init`. Lines with `# ?` are questions that tensors leave open."""\n\n'
        + (_imports(body) + "\n\n" + body)
    )


def _imports(body: str) -> str:
    used = [name for name in PUBLIC if _uses(body, name)]
    used += ["attention", "rope"] if "class LateNormAttention" in body else []
    lines = "".join(f"    {name},\n" for name in sorted(used, key=lambda name: (not name.isupper(), name)))
    return (
        "from __future__ import annotations\n\nfrom dataclasses import dataclass\nfrom typing import ClassVar, Self\n\n"
        f"from bringup.graphs import (\n{lines})\n"
    )


def _uses(body: str, name: str) -> bool:
    import re

    return re.search(rf"(?<![\w.`]){name}\b(?!`)", body) is not None


def _bias(facts: Facts, part: str, field: str) -> str:
    has, key = bias_key(facts, part)
    return f"config.{field}" if key else str(has)


def _layer(facts: Facts) -> str:
    roles, norm, sizes = facts.roles, facts.norm, facts.sizes
    settings = [f"bias={_bias(facts, 'qkv', 'attention_bias')}", f"out_bias={_bias(facts, 'o', 'out_bias')}"]
    if roles.has("q_norm"):
        wide = roles.found["q_norm", "weight"].shape == (sizes.h * sizes.d,) and sizes.h > 1
        over = ', norm_over="projection"' if wide else ""
        settings.append(f"qk_norm=config.eps, norm=self.norm{over}")
    settings.append("window=config.windows[index]")
    if facts.hints.meaning and {"scores", "scores root"} & facts.hints.meaning.factors.keys():
        settings.append("scale=config.query_scale")
    if facts.hints.meaning and facts.hints.meaning.score_cap:
        settings.append("softcap=config.score_cap")
    mlp = _mlp(facts)
    text = f"class {facts.title}(CausalLM):\n"
    if norm in NORM_CHOICES and facts.hints.norm is None:
        others = [f"{name}, which {why}" for name, why in NORM_CHOICES.items() if name != norm]
        text += comment(
            facts.ask("no shape shows the kind of norm", f"{norm}, which {NORM_CHOICES[norm]}", *others), "    "
        )
    text += f"    norm = {norm}\n\n"
    text += f"    def layer(self, config: {facts.title}Config, index: int):\n"
    text += "        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim\n"
    text += _unexplained(facts)
    joined = "".join(f"            {setting},\n" for setting in settings)
    kinds = attentions(facts)
    if kinds and facts.rope_in:
        text += f"        kind = {kinds[0]} if config.rotated[index] else {kinds[-1]}\n"
    kind = "kind" if kinds and facts.rope_in else kinds[0] if kinds else "GroupedAttention"
    text += f"        attention = {kind}(\n            m, h, g, d,\n{joined}        )\n{mlp}"
    if layer := PARALLEL_LAYERS.get(facts.norms):
        if not facts.parallel and not (facts.hints.meaning and facts.hints.meaning.norms == "parallel"):
            question = facts.ask(
                "a layer has one norm: what does the MLP take?",
                "the normed input, in parallel with attention",
                "the sum after attention, without a norm",
            )
            text += comment(question)
        return f"{text}        return {layer}(m, config.eps, attention, mlp, norm=self.norm)\n{_epilogue(facts)}"
    if scaled(facts):
        text += "        layer = ScaledLayer(m, config.eps, attention, mlp, norm=self.norm)\n"
        return f"{text}        layer.scale = config.residual_scale\n        return layer\n{_epilogue(facts)}"
    rope = ", rope=int(config.windows[index] is not None)" if layer_ropes(facts) else ""
    norms = "before" if facts.norms == "plain" else facts.norms
    layer = f'PreNormLayer(m, config.eps, attention, mlp, norm=self.norm, norms="{norms}"{rope})'
    return f"{text}        return {layer}\n{_epilogue(facts)}"


def _mlp(facts: Facts) -> str:
    """The lines that define `mlp`: for layers with and without experts, by the layer's index."""
    mlp_bias = _bias(facts, "mlp", "mlp_bias")
    widths = "config.expert_ffn, config.shared_ffn, " if facts.shared else "config.expert_ffn, "
    kinds_of_mlp = {
        "gated": f"GatedMLP(m, config.ffn, config.activation, bias={mlp_bias})",
        "plain": f"MLP(m, config.ffn, config.activation, bias={mlp_bias}, out_bias={mlp_bias})",
        "experts": f"{facts.shared or 'SparseMLP'}(\n            config.num_experts, m, {widths}config.activation,\n"
        "            per_token=config.experts_per_token, normalise=config.normalise,\n        )",
    }
    if facts.routing:
        kinds_of_mlp["experts"] = f"{facts.shared or 'SigmoidMLP'}(m, {widths}config.activation, config.routing)"
    mlp = f"        mlp = {kinds_of_mlp[facts.mlp]}\n"
    if facts.dense:
        mlp = f"        if config.sparse[index]:\n{indent(mlp, '    ')}"
        mlp += f"        else:\n            mlp = {kinds_of_mlp[facts.dense]}\n"
    return mlp


def attentions(facts: Facts) -> list[str]:
    """The classes of attention that a draft defines: with norms after rope, or those of layers with and without rope;
    [] for `GroupedAttention`."""
    late = facts.hints.meaning is not None and facts.hints.meaning.late_norms and facts.roles.has("q_norm")
    if facts.rope_in:
        return ["LateNormAttention" if late else "GroupedAttention", "LateNormNoRope" if late else "NoRopeAttention"]
    return ["LateNormAttention"] if late else []


def _unexplained(facts: Facts) -> str:
    """Statements of transformers that a draft does not compute, a question for each class."""
    text = ""
    if facts.hints.meaning and facts.hints.meaning.routing and not facts.routing:
        text += comment(facts.ask("transformers' router computes sigmoid scores, which the draft does not"))
    for name, statements in (facts.hints.meaning.unexplained if facts.hints.meaning else {}).items():
        more = f" and {len(statements) - 3} more" if len(statements) > 3 else ""
        lines = "; ".join(f"`{short(each)}`" for each in statements[:3])
        text += comment(facts.ask(f"transformers' {name} computes what the draft does not: {lines}{more}"))
    return text


def _epilogue(facts: Facts) -> str:
    """The scale of the logits."""
    if not (sign := logit_sign(facts)):
        return ""
    return f"\n    def epilogue(self, x_Rm):\n        return super().epilogue(x_Rm) {sign} self.config.logit_scale\n"
