"""The text of a drafted config class: it reads the keys whose meaning is known, and asks about the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bringup.compile.draft.facts.facts import Facts, bias_key, rotary_dim
from bringup.compile.draft.facts.questions import comment
from bringup.compile.draft.facts.quoted import one_line, quoted, tuple_of
from bringup.compile.draft.facts.words import QK_NORMS, THETA, first
from bringup.compile.draft.text.experts import every_layer_keys, experts_text
from bringup.compile.draft.text.meaning import layer_ropes, meaning_text, table_of, windows_text
from bringup.graphs.config.neutral import NEUTRAL
from bringup.shown import short, shown


def config_text(facts: Facts, read: frozenset[str]) -> str:
    fields: list[str] = []
    biases: list[str] = []
    notes = ""
    for part, field in (("qkv", "attention_bias"), ("o", "out_bias"), ("mlp", "mlp_bias")):
        has, key = bias_key(facts, part)
        if key and not (facts.mlp == "experts" and not facts.dense and part == "mlp"):
            fields.append(f"    {field}: bool\n")
            biases.append(f"            {field}=fields.get({quoted(key)}, bool, {quoted(facts.default(key, has))}),\n")
    layers = quoted(facts.keys["num_hidden_layers"])
    lines = [f"        layers = fields.layers({layers})\n", *windows_text(facts), *_common(facts)]
    for written in (experts_text(facts), meaning_text(facts)):
        fields, biases, lines = fields + written.fields, biases + written.values, lines + written.lines
    if not facts.hints.defaults:
        notes += comment(facts.ask("what absent keys of config.json mean is not known: the values below are Llama's"))
    if facts.hints.rope is False and not facts.learned:
        notes += comment(facts.ask("transformers' modelling file has no rope, which the draft rotates q and k with"))
    if facts.parallel:
        notes += f"        fields.only({quoted(facts.parallel)}, True)  # layers are parallel\n"
    notes += _shown_by_tensors(facts)
    for key in sorted(facts.raw.keys() - read - NEUTRAL - {"layer_types"}) if read else ():
        inner = table_of(facts.raw[key])
        notes += _table(facts, key, inner) if inner else _unread(facts, key)
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


def _shown_by_tensors(facts: Facts) -> str:
    """The lines for keys that tensors or other keys show too."""
    notes = ""
    for key in QK_NORMS:
        if facts.raw.get(key) is True and facts.roles.has("q_norm"):
            notes += f"        fields.only({quoted(key)}, True)  # the tensors have these norms\n"
    if rotary_dim(facts):
        notes += (
            f'        rotary = fields.size("rotary_dim", {rotary_dim(facts)})\n'
            '        if common["rope"].channels(common["head_dim"]) != rotary:\n'
            '            fields.error("BU121", "`rotary_dim` differs from `partial_rotary_factor`", "rotary_dim")\n'
        )
    return notes


def _unread(facts: Facts, key: str) -> str:
    """A key that is not read: only null and false are implemented, other values need an answer."""
    value = facts.raw[key]
    if key in every_layer_keys(facts):
        text = f"`{short(key)}` is {shown(value)}, which gives every layer experts: other values are rejected"
        question = facts.ask(f"{text}; write what they change")
        return comment(question) + f"        fields.only({quoted(key)}, {quoted(value)})\n"
    if key in facts.hints.inert:
        return f"        fields.only({quoted(key)}, {quoted(value)})  # transformers does not read it\n"
    if value is None or value is False or key in facts.hints.settled:
        question = facts.ask(f"`{short(key)}` is {shown(value)}: other values are rejected; write what they change")
        return comment(question) + f"        fields.only({quoted(key)}, {quoted(value)})\n"
    if key == "original_max_position_embeddings":
        return f"        fields.optional({quoted(key)}, int)  # read for the types of rope that have it\n"
    if key.endswith(("dropout", "dropout_prob", "initializer_range")):
        return f"        fields.get({quoted(key)}, float, 0.0)  # of training\n"
    question = facts.ask(
        f"`{short(key)}` is {shown(value)}: what does it change? `check` rejects it until `from_fields` reads it",
    )
    return comment(question) + _statements(facts, rf"\bconfig\.{re.escape(key)}\b")


def _table(facts: Facts, key: str, table: Mapping[str, Any]) -> str:
    """A table of keys that are not read: a question for each one."""
    text = f"        table = fields.inner({quoted(key)})\n"
    for inner in sorted(table.keys() - NEUTRAL):
        what = f"`{short(f'{key}.{inner}')}` is {shown(table[inner])}: what does it change? `check` rejects it until"
        text += comment(facts.ask(f"{what} `from_fields` reads it")) + _statements(facts, rf"\.{re.escape(inner)}\b")
    return text + "        fields.findings += table.done()\n"


def _statements(facts: Facts, pattern: str) -> str:
    """The first statements of the model's code with a key, as comments."""
    lines = [text for text in facts.hints.statements if re.search(pattern, text)]
    return "".join(f"        #      {facts.hints.code}: {one_line(short(text))}\n" for text in lines[:3])


def _common(facts: Facts) -> list[str]:
    """`common = read_common(…)`, or each of its fields if a config has other keys for sizes."""
    keys = facts.keys
    rope: dict[str, Any] = {"theta": _theta(facts)}
    if (key := first(THETA, facts.raw)) not in (None, "rope_theta"):
        rope["theta_key"] = key
    group = table_of(facts.raw.get("rope_parameters"))
    if "partial_rotary_factor" in facts.raw or "partial_rotary_factor" in group:
        known = table_of(facts.hints.defaults.get("rope_parameters"))
        rope["partial"] = known.get("partial_rotary_factor", 1.0)
    if facts.hints.meaning and facts.hints.meaning.position_scale:
        rope["further"] = ("llama_4_scaling_beta", "max_position_embeddings")
    named = facts.states_kv_heads and all(
        key == meaning for meaning, key in keys.items() if meaning.endswith(("_size", "_heads", "_layers"))
    )
    named = named and keys.get("positions", "max_position_embeddings") == "max_position_embeddings"
    named = named and facts.raw.get(keys["intermediate_size"]) is not None
    ropes = layer_ropes(facts)
    comments = ""
    if any(isinstance(value, Mapping) for value in group.values()) and not (ropes and named):
        comments = comment(
            facts.ask("`rope_parameters` has a table for each kind of layer, and the draft has one rope")
        )
    comments += _questions_of_eps(facts)
    if named:
        return [comments, _read_common(facts, {**rope, **(ropes or {})})]
    before, kv = _key_heads(facts)
    return [comments + before, *_each_field(facts, kv, rope)]


def _questions_of_eps(facts: Facts) -> str:
    if "eps" in facts.keys and facts.hints.eps is not None:
        return comment(facts.ask(f"transformers' norms have the epsilon {facts.hints.eps}, whatever the key states"))
    if "eps" not in facts.keys and facts.hints.eps is None:
        return comment(facts.ask("the epsilon of the norms is not in config.json", f"eps={_eps(facts)[1]}"))
    return ""


def _eps(facts: Facts) -> tuple[str, Any]:
    """The key of the norms' epsilon, and its default."""
    key = facts.keys.get("eps", "rms_norm_eps")
    return key, facts.default(key, 1e-5) if facts.hints.eps is None else facts.hints.eps


def _read_common(facts: Facts, rope: Mapping[str, Any]) -> str:
    """The call, for a config whose sizes have the usual keys."""
    keys, default = facts.keys, facts.default
    (eps, absent_eps), act, head_dim = _eps(facts), keys.get("act", "hidden_act"), keys.get("head_dim", "head_dim")
    own = {"rms_norm_eps": eps, "hidden_act": act, "head_dim": head_dim}
    own = {theirs: ours for theirs, ours in own.items() if theirs != ours}
    settings = {
        "max_positions": default("max_position_embeddings", 2048), "eps": absent_eps,
        "tied": default("tie_word_embeddings", False), "activation": default(act, "silu"),
        **({"keys": own} if own else {}), "nulls": ("num_key_value_heads", "head_dim"), **rope,
    }  # fmt: skip
    given = "".join(f"            {key}={quoted(value)},\n" for key, value in settings.items())
    if rotary := rotary_dim(facts):
        part = f'fields.size("rotary_dim", {rotary}) / fields.size("head_dim", {facts.sizes.d})'
        given = re.sub(r" +partial=.*\n", "", given) + f"            partial={part},\n"
    return f"        common = read_common(\n            fields,\n            windows,\n{given}        )\n"


def _each_field(facts: Facts, kv: str, rope: Mapping[str, Any]) -> list[str]:
    """The fields one by one; `kv` is the expression for the number of key heads."""
    keys, default, rotary = facts.keys, facts.default, rotary_dim(facts)
    length, act = keys.get("positions", "max_position_embeddings"), keys.get("act", "hidden_act")
    positions, (eps, absent_eps) = default(length, 2048), _eps(facts)
    d = f"fields.size({quoted(keys['head_dim'])}, hidden // heads)" if "head_dim" in keys else "hidden // heads"
    given = ", ".join(f"{key}={quoted(value)}" for key, value in rope.items() if key != "partial" or not rotary)
    given += f', partial=fields.size("rotary_dim", {rotary}) / head_dim' if rotary else ""
    width = ""
    if facts.raw.get(keys["intermediate_size"]) is None:  # the tensors are as wide
        width = ", 4 * hidden, null=4 * hidden"
    return [
        f"        hidden = fields.size({quoted(keys['hidden_size'])})\n",
        f"        heads = fields.size({quoted(keys['num_attention_heads'])})\n",
        f"        head_dim = {d}\n",
        f"        positions = fields.size({quoted(length)}, {quoted(positions)})\n",
        "        common = dict(\n",
        f"            vocab_size=fields.size({quoted(keys['vocab_size'])}),\n",
        "            max_positions=positions,\n            hidden=hidden,\n",
        f"            ffn=fields.size({quoted(keys['intermediate_size'])}{width}),\n",
        f"            num_heads=heads,\n            num_kv_heads={kv},\n            head_dim=head_dim,\n",
        f"            activation=fields.choice({quoted(act)}, ACTIVATIONS, {quoted(default(act, 'silu'))}),\n",
        f"            eps=fields.positive({quoted(eps)}, {quoted(absent_eps)}),\n",
        f"            rope=RopeConfig.from_hf(fields, head_dim, positions, {given}),\n",
        '            tied_head=fields.get("tie_word_embeddings", bool, '
        f"{quoted(default('tie_word_embeddings', False))}),\n",
        "            windows=windows,\n        )\n",
    ]


def _key_heads(facts: Facts) -> tuple[str, str]:
    """The lines before the sizes and the expression for the number of key heads, as the tensors have them."""
    key = facts.keys.get("num_key_value_heads")
    stated = f"fields.size({quoted(key)})" if key else "heads"
    if facts.states_kv_heads:
        return "", stated
    if facts.sizes.g == 1 and facts.multi_query:
        line = f"        key_heads = {stated}\n" if key else ""
        flag = f"fields.get({quoted(facts.multi_query)}, bool, True)"
        return line, f"1 if {flag} else {'key_heads' if key else stated}"
    text = f"the tensors have {facts.sizes.g} key heads, and no key of config.json states that number"
    return comment(facts.ask(text)), str(facts.sizes.g)


def _theta(facts: Facts) -> float:
    group = table_of(facts.hints.defaults.get("rope_parameters"))
    theta = group.get("rope_theta", facts.default(first(THETA, facts.raw) or "rope_theta", 10000.0))
    return float(theta) if isinstance(theta, int | float) else 10000.0  # a table: one for each kind of layer
