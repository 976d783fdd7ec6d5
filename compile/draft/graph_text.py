"""The text of a drafted graph: a config class, settings of the public parts, and classes that these lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from bringup.compile.draft.facts import PUBLIC, Facts, Question, bias_key
from bringup.compile.draft.quoted import one_line, quoted, tuple_of
from bringup.graphs.config.neutral import NEUTRAL
from bringup.graphs.decoder import CONTEXT_KEYS
from bringup.shown import short, shown

# Classes that the public parts lack and a draft defines.
CLASSES = {
    "ScaleNorm": '''class ScaleNorm(Module):
    """Layer normalisation without a bias."""

    def __init__(self, m: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Param("m", m=m)

    def forward(self, x):
        return layer_norm(x, self.weight, self.weight.new_zeros(self.weight.shape), self.eps)
''',
    "PlainNorm": '''class PlainNorm(Module):
    """Layer normalisation without weight and bias."""

    def __init__(self, m: int, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return layer_norm(x, x.new_ones(x.shape[-1]), x.new_zeros(x.shape[-1]), self.eps)
''',
    "ParallelLayer": '''class ParallelLayer(Module):
    """x + attention(norm(x)) + mlp(norm(x)): one norm for both."""

    def __init__(self, m: int, eps: float, attention: Module, mlp: Module, *, norm) -> None:
        super().__init__()
        self.input_layernorm = norm(m, eps)
        self.self_attn = attention
        self.mlp = mlp

    def forward(self, x_Nm, cos, sin, step):
        normed_Nm = self.input_layernorm(x_Nm)
        return x_Nm + self.self_attn(normed_Nm, cos, sin, step) + self.mlp(normed_Nm)
''',
}
NORM_CHOICES = {
    "RMSNorm": "rounds before the product with the weight",
    "OnePlusRMSNorm": "multiplies by 1 + weight",
    "Float32RMSNorm": "rounds after the product",
    "ScaleNorm": "subtracts the mean too: layer normalisation without a bias",
}
ROPE_KEYS = frozenset({"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", *CONTEXT_KEYS})


def graph_text(facts: Facts, read: frozenset[str] = frozenset()) -> str:
    """The file. `read` are keys that a first version of the text read when it was run."""
    config, layer = _config(facts, read), _layer(facts)
    classes = [CLASSES[name] for name in (facts.norm, "ParallelLayer") if name in CLASSES]
    if facts.norms != "parallel":
        classes = [text for text in classes if "ParallelLayer" not in text]
    body = "\n\n".join([*classes, config, layer])
    return (
        f'"""{facts.title}: a draft by `bringup init`. Lines with `# ?` are questions that tensors leave open."""\n\n'
        + (_imports(body) + "\n\n" + body)
    )


def _imports(body: str) -> str:
    used = [name for name in PUBLIC if _uses(body, name)]
    lines = "".join(f"    {name},\n" for name in sorted(used, key=lambda name: (not name.isupper(), name)))
    return (
        "from __future__ import annotations\n\nfrom dataclasses import dataclass\nfrom typing import ClassVar, Self\n\n"
        f"from bringup.graphs import (\n{lines})\n"
    )


def _uses(body: str, name: str) -> bool:
    import re

    return re.search(rf"(?<![\w.`]){name}\b(?!`)", body) is not None


def comment(question: Question, indent: str = "        ") -> str:
    """A question as comments, one choice on each line."""
    lines = [f"{indent}# ? {question.number}. {one_line(question.text)}"]
    for at, choice in enumerate(question.choices):
        lines.append(f"{indent}#      {'  or' if at else 'here'}: {one_line(choice)}")
    return "\n".join(lines) + "\n"


def _config(facts: Facts, read: frozenset[str]) -> str:
    fields: list[str] = []
    biases: list[str] = []
    notes = ""
    for part, field in (("qkv", "attention_bias"), ("o", "out_bias"), ("mlp", "mlp_bias")):
        has, key = bias_key(facts, part)
        if key and not (facts.mlp == "experts" and part == "mlp"):
            fields.append(f"    {field}: bool\n")
            biases.append(f"            {field}=fields.get({quoted(key)}, bool, {quoted(facts.default(key, has))}),\n")
    if facts.mlp == "experts":
        fields += ["    num_experts: int\n", "    experts_per_token: int\n", "    expert_ffn: int\n"]
        fields += ["    normalise: bool\n"]
        biases += _experts(facts)
    window = facts.raw.get("sliding_window") is not None or "sliding_window" in facts.hints.defaults
    windows = "(sliding_window(fields),) * layers" if window else "(None,) * layers"
    if "layer_types" in facts.raw and window:
        windows = "alternating_windows(fields, layers, sliding_window(fields), full_every=1)"
    layers = quoted(facts.keys["num_hidden_layers"])
    lines = [f"        layers = fields.layers({layers})\n", f"        windows = {windows}\n"]
    lines += _common(facts)
    if not facts.hints.defaults:
        notes += comment(facts.ask("what absent keys of config.json mean is not known: the values below are Llama's"))
    if facts.hints.rope is False:
        notes += comment(facts.ask("transformers' modelling file has no rope, which the draft rotates q and k with"))
    for key in sorted(facts.raw.keys() - read - NEUTRAL - {"layer_types"}) if read else ():
        notes += _unread(facts, key)
    model_type = facts.raw.get("model_type")
    types = ""
    if isinstance(model_type, str):
        types = f"    model_types: ClassVar[tuple[str, ...]] = {tuple_of([model_type])}\n"
    return (
        "@dataclass(frozen=True, slots=True, kw_only=True)\n"
        f"class {facts.title}Config(DecoderConfig):\n    family: ClassVar[str] = {quoted(facts.name)}\n{types}"
        + ("\n" + "".join(fields) if fields else "")
        + "\n    @classmethod\n    def from_fields(cls, fields: Fields) -> Self:\n"
        + "".join(lines)
        + notes
        + f"        return cls(\n            **common,\n{''.join(biases)}        )\n"
    )


def _unread(facts: Facts, key: str) -> str:
    """A key that is not read: only null and false are implemented, other values need an answer."""
    value = facts.raw[key]
    if value is None or value is False:
        question = facts.ask(f"`{short(key)}` is {value}: other values are rejected; write what they change")
        return comment(question) + f"        fields.only({quoted(key)}, {quoted(value)})\n"
    if key.endswith(("dropout", "dropout_prob")):
        return f"        fields.get({quoted(key)}, float, 0.0)  # of training\n"
    question = facts.ask(
        f"`{short(key)}` is {shown(value)}: what does it change? `check` rejects it until `from_fields` reads it"
    )
    return comment(question)


def _experts(facts: Facts) -> list[str]:
    keys = facts.keys
    normalise = f'fields.get("norm_topk_prob", bool, {quoted(facts.default("norm_topk_prob", False))})'
    lines: list[str] = []
    if "norm_topk_prob" not in facts.raw:
        question = facts.ask("do the shares of the chosen experts add up to 1?", "normalise=True", "normalise=False")
        lines, normalise = [comment(question, " " * 12)], "True"
    count, width = keys["experts"], keys.get("expert_width", keys["intermediate_size"])
    return [
        f"            num_experts=fields.experts({quoted(count)}, {facts.sizes.e}),\n",
        f"            experts_per_token=fields.size({quoted(keys.get('per_token', 'num_experts_per_tok'))}, 2),\n",
        f"            expert_ffn=fields.size({quoted(width)}),\n",
        *lines,
        f"            normalise={normalise},\n",
    ]


def _common(facts: Facts) -> list[str]:
    """`common = read_common(…)`, or each of its fields if a config has other keys for sizes."""
    keys, default = facts.keys, facts.default
    rope = {"theta": _theta(facts)}
    group = _table(facts.raw.get("rope_parameters"))
    if "partial_rotary_factor" in facts.raw or "partial_rotary_factor" in group:
        known = _table(facts.hints.defaults.get("rope_parameters"))
        rope["partial"] = known.get("partial_rotary_factor", 1.0)
    eps = keys.get("eps", "rms_norm_eps")
    positions, tied = default("max_position_embeddings", 2048), default("tie_word_embeddings", False)
    activation = default(keys.get("act", "hidden_act"), "silu")
    comments = ""
    if "eps" not in keys:
        comments = comment(facts.ask("the epsilon of the norms is not in config.json", f"eps={default(eps, 1e-5)}"))
    named = all(key == meaning for meaning, key in keys.items() if meaning.endswith(("_size", "_heads", "_layers")))
    if named and facts.raw[keys["intermediate_size"]] is not None:
        own = {
            "rms_norm_eps": eps,
            "hidden_act": keys.get("act", "hidden_act"),
            "head_dim": keys.get("head_dim", "head_dim"),
        }
        own = {theirs: ours for theirs, ours in own.items() if theirs != ours}
        settings = {
            "max_positions": positions, "eps": default(eps, 1e-5), "tied": tied, "activation": activation,
            **({"keys": own} if own else {}), "nulls": ("num_key_value_heads", "head_dim"), **rope,
        }  # fmt: skip
        given = "".join(f"            {key}={quoted(value)},\n" for key, value in settings.items())
        return [
            comments,
            f"        common = read_common(\n            fields,\n            windows,\n{given}        )\n",
        ]
    heads = f"fields.size({quoted(keys['num_attention_heads'])})"
    kv = f"fields.size({quoted(keys['num_key_value_heads'])})" if "num_key_value_heads" in keys else "heads"
    d = f"fields.size({quoted(keys['head_dim'])}, hidden // heads)" if "head_dim" in keys else "hidden // heads"
    given = ", ".join(f"{key}={quoted(value)}" for key, value in rope.items())
    act = keys.get("act", "hidden_act")
    width = ""
    if facts.raw[keys["intermediate_size"]] is None:
        question = facts.ask(f"`{short(keys['intermediate_size'])}` is null: is it 4 times the hidden size?")
        comments, width = comments + comment(question), ", 4 * hidden, null=4 * hidden"
    return [
        comments,
        f"        hidden, heads = fields.size({quoted(keys['hidden_size'])}), {heads}\n",
        f"        head_dim = {d}\n",
        f'        positions = fields.size("max_position_embeddings", {quoted(positions)})\n',
        "        common = dict(\n",
        f"            vocab_size=fields.size({quoted(keys['vocab_size'])}),\n",
        "            max_positions=positions,\n            hidden=hidden,\n",
        f"            ffn=fields.size({quoted(keys['intermediate_size'])}{width}),\n",
        f"            num_heads=heads,\n            num_kv_heads={kv},\n            head_dim=head_dim,\n",
        f"            activation=fields.choice({quoted(act)}, ACTIVATIONS, {quoted(activation)}),\n",
        f"            eps=fields.positive({quoted(eps)}, {quoted(default(eps, 1e-5))}),\n",
        f"            rope=RopeConfig.from_hf(fields, head_dim, positions, {given}),\n",
        f'            tied_head=fields.get("tie_word_embeddings", bool, {quoted(tied)}),\n',
        "            windows=windows,\n        )\n",
    ]


def _table(value: object) -> Mapping[str, Any]:
    """A table of config.json; {} for another value, which the config class reports."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _theta(facts: Facts) -> float:
    group = _table(facts.hints.defaults.get("rope_parameters"))
    return float(group.get("rope_theta", facts.default("rope_theta", 10000.0)))


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
    mlp_bias = _bias(facts, "mlp", "mlp_bias")
    mlp = {
        "gated": f"GatedMLP(m, config.ffn, config.activation, bias={mlp_bias})",
        "plain": f"MLP(m, config.ffn, config.activation, bias={mlp_bias}, out_bias={mlp_bias})",
        "experts": "SparseMLP(\n            config.num_experts, m, config.expert_ffn, config.activation,\n"
        "            per_token=config.experts_per_token, normalise=config.normalise,\n        )",
    }[facts.mlp]
    text = f"class {facts.title}(CausalLM):\n"
    if norm in NORM_CHOICES and facts.hints.norm is None:
        others = [f"{name}, which {why}" for name, why in NORM_CHOICES.items() if name != norm]
        text += comment(
            facts.ask("no shape shows the kind of norm", f"{norm}, which {NORM_CHOICES[norm]}", *others), "    "
        )
    text += f"    norm = {norm}\n\n"
    text += f"    def layer(self, config: {facts.title}Config, index: int):\n"
    text += "        m, h, g, d = config.hidden, config.num_heads, config.num_kv_heads, config.head_dim\n"
    joined = "".join(f"            {setting},\n" for setting in settings)
    text += f"        attention = GroupedAttention(\n            m, h, g, d,\n{joined}        )\n        mlp = {mlp}\n"
    if facts.norms == "parallel":
        question = facts.ask(
            "a layer has one norm: what does the MLP take?",
            "the normed input, in parallel with attention",
            "the sum after attention, without a norm",
        )
        return f"{text}{comment(question)}        return ParallelLayer(m, config.eps, attention, mlp, norm=self.norm)\n"
    norms = "before" if facts.norms == "plain" else facts.norms
    return f'{text}        return PreNormLayer(m, config.eps, attention, mlp, norm=self.norm, norms="{norms}")\n'
