"""The text for what transformers' code computes: factors, caps, windows, and the layers that rotate q and k."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from bringup.compile.draft.facts.facts import Facts
from bringup.compile.draft.facts.quoted import quoted
from bringup.compile.draft.modelling.stated import Meaning

KINDS = frozenset({"full_attention", "sliding_attention"})


@dataclass(slots=True)
class Written:
    """Declarations of config fields, their values, and lines after `common`."""

    fields: list[str] = field(default_factory=list[str])
    values: list[str] = field(default_factory=list[str])
    lines: list[str] = field(default_factory=list[str])

    def add(self, name: str, kind: str, value: str) -> None:
        """A field of the config class."""
        self.fields.append(f"    {name}: {kind}\n")
        self.values.append(f"            {name}={value},\n")


def meaning_text(facts: Facts) -> Written:
    """What the modelling code states; nothing without transformers."""
    written, meaning = Written(), facts.hints.meaning
    if meaning is None:
        return written
    common = {"embedding": "embedding_scale", "scores": "query_scale", "scores root": "query_scale"}
    for place, name in common.items():
        if place in meaning.factors:
            root = " ** -0.5" if place.endswith("root") else ""
            written.lines.append(f'        common["{name}"] = {_positive(facts, meaning.factors[place])}{root}\n')
    if meaning.sqrt_embedding:
        written.lines.append('        common["embedding_scale"] = common["hidden"] ** 0.5\n')
    for name, key in (("score_cap", meaning.score_cap), ("logit_cap", meaning.logit_cap)):
        if key:
            absent = facts.hints.defaults.get(key)
            value = f"fields.optional({quoted(key)}, float)"
            value += f" if {quoted(key)} in fields.raw else {quoted(absent)}" if absent is not None else ""
            written.lines.append(f'        common["{name}"] = {value}\n')
    _scales(facts, meaning, written)
    _of_attention(facts, meaning, written)
    if facts.layer_thetas:
        written.lines += _layer_thetas(facts.layer_thetas)
    rope_in = {
        "thetas": "tuple(theta != 0 for theta in thetas)",
        "windows": "tuple(window is not None for window in windows)",
        "windows or all": "tuple(window is not None or not any(windows) for window in windows)",
    }.get(facts.rope_in, f"tuple(map(bool, fields.indices({quoted(facts.rope_in)})))")
    if facts.rope_in:
        written.add("rotated", "tuple[bool, ...]", rope_in)
    return written


def _layer_thetas(key: str) -> list[str]:
    """The lines that read the theta of each layer's rope: the draft has one, for the layers whose theta is not 0."""
    expected = "expected a theta for each layer, the same or 0: the draft has one rope"
    return [
        '        one = (common["rope"].theta,) * layers\n',
        f"        thetas = fields.numbers({quoted(key)}, one, zeros=True)\n",
        "        if len(thetas) != layers or len(set(thetas) - {0.0}) > 1:\n",
        f'            fields.error("BU122", {quoted(expected)}, {quoted(key)})\n',
        "            thetas = one\n",
        '        common["rope"] = replace(common["rope"], theta=max(thetas) or common["rope"].theta)\n',
    ]


def _scales(facts: Facts, meaning: Meaning, written: Written) -> None:
    """The factors of residuals, of the sum of experts, and of logits."""
    if scaled(facts):
        places = {"residual": "", "residual by depth": " / layers**0.5"}
        place = next(place for place in places if place in meaning.factors)
        written.add("residual_scale", "float", _positive(facts, meaning.factors[place]) + places[place])
    if "experts" in meaning.factors:
        written.add("expert_factor", "float", _positive(facts, meaning.factors["experts"]))
    if sign := logit_sign(facts):
        written.add("logit_scale", "float", _positive(facts, meaning.factors[f"logits {sign}"]))


def _of_attention(facts: Facts, meaning: Meaning, written: Written) -> None:
    """What the draft's attention reads: the clip, how queries grow with their position, ranks of latents."""
    if facts.sizes.latent:
        _of_latents(facts, written)
    if meaning.clip:
        written.add("clip", "float", f"fields.positive({quoted(meaning.clip)})")
    if meaning.position_scale:
        key = "max_position_embeddings"
        again = key in table_of(facts.raw.get("rope_parameters"))  # the key outside of the table is read
        inner = f'        table.only("{key}", fields.raw.get("{key}"))\n' if again else ""
        written.lines.append(
            '        table = Fields(fields.group("rope_parameters"), cls.family, at="rope_parameters.")\n'
            '        period = table.size("original_max_position_embeddings")\n'
            '        growth = table.get("llama_4_scaling_beta", float), period\n'
            + inner
            + "        fields.findings += table.findings\n"
        )
        written.add("growth", "tuple[float, int]", "growth")


def _of_latents(facts: Facts, written: Written) -> None:
    """The sizes of multi-head latent attention; keys that follow from them must agree."""
    rank, default = "q_lora_rank", facts.hints.defaults.get("q_lora_rank")
    value = f'fields.optional("{rank}", int) if "{rank}" in fields.raw else {quoted(default)}'
    written.add("q_rank", "int | None", value)
    sizes = {"kv_rank": "kv_lora_rank", "plain_dim": "qk_nope_head_dim", "value_dim": "v_head_dim"}
    for name, key in sizes.items():
        absent = facts.hints.defaults.get(key)
        written.add(name, "int", f"fields.size({quoted(key)}{f', {absent}' if type(absent) is int else ''})")
    turns = facts.hints.meaning.latent if facts.hints.meaning else ""
    key = 'fields.get("rope_interleave", bool, True, null=False)'
    written.add("interleaved", "bool", {"pairs": "True", "halves": "False"}.get(turns, key))
    plain = facts.hints.defaults.get("qk_nope_head_dim")
    given = f", {plain}" if type(plain) is int else ""
    written.lines.append(
        f'        both = fields.size("qk_nope_head_dim"{given}) + common["head_dim"]\n'
        '        fields.only("qk_head_dim", both, None)\n'
        '        fields.only("head_dim", common["head_dim"], None)\n'
        '        fields.only("num_key_value_heads", common["num_heads"], None)\n'
    )


def _positive(facts: Facts, key: str) -> str:
    if key in facts.hints.quotients:
        one, other = facts.hints.quotients[key]
        return f"{_positive(facts, one)} / {_positive(facts, other)}"
    absent = facts.hints.defaults.get(key)
    number = f", {quoted(float(absent))}" if isinstance(absent, int | float) and absent > 0 else ""
    return f"fields.positive({quoted(key)}{number})"


def scaled(facts: Facts) -> bool:
    """Whether attention and MLP are multiplied before they are added, in a layer that a draft can write."""
    known = facts.hints.meaning
    factors = known.factors.keys() & {"residual", "residual by depth"} if known else ()
    return bool(factors) and facts.norms in ("before", "around", "after")


def logit_sign(facts: Facts) -> str:
    """How logits are scaled: `*`, `/`, or '' if they are not."""
    factors = facts.hints.meaning.factors if facts.hints.meaning else {}
    return next((sign for sign in "*/" if f"logits {sign}" in factors), "")


def windows_text(facts: Facts) -> list[str]:
    """The lines that define `windows`, one of each layer."""
    raw, meaning = facts.raw, facts.hints.meaning
    has = raw.get("sliding_window") is not None or "sliding_window" in facts.hints.defaults
    if not has or (meaning is not None and not meaning.windows):
        unused = '        fields.optional("sliding_window", int)  # without effect\n'
        lines = [unused] if meaning is not None and "sliding_window" in raw else []
        every = "alternating_windows(fields, layers, None, full_every=1)"
        return [*lines, f"        windows = {every if 'layer_types' in raw else '(None,) * layers'}\n"]
    absent, lines = facts.hints.defaults.get("sliding_window"), list[str]()
    size = "sliding_window(fields)" if absent is None else f"sliding_window(fields, {quoted(absent)})"
    if "use_sliding_window" in raw:
        used = quoted(facts.default("use_sliding_window", False))
        lines.append('        fields.optional("sliding_window", int)  # 0 or any number if not used\n')
        lines.append(f'        used = fields.get("use_sliding_window", bool, {used})\n')
        lines.append(f"        window = {size} if used else None\n")
        size = "window"
    types = raw.get("layer_types") or facts.hints.resolved.get("layer_types")
    every = _full_every(types)
    if every:
        key = "sliding_window_pattern"
        count = f"fields.size({quoted(key)}, {every})" if raw.get(key) == every and every > 1 else str(every)
        return [*lines, f"        windows = alternating_windows(fields, layers, {size}, full_every={count})\n"]
    if isinstance(raw.get("layer_types"), list):
        return [*lines, f"        windows = alternating_windows(fields, layers, {size}, full_every=1)\n"]
    return [*lines, f"        windows = ({size},) * layers\n"]


def _full_every(types: object) -> int:
    """N if the N-th layer of every N has full attention and the others a window; 0 otherwise."""
    kinds = cast("list[Any]", types) if isinstance(types, list) else []
    if not kinds or not set(map(str, kinds)) <= KINDS or "full_attention" not in kinds:
        return 0
    every = kinds.index("full_attention") + 1
    same = all((kind == "full_attention") == ((at + 1) % every == 0) for at, kind in enumerate(kinds))
    return every if same else 0


def layer_ropes(facts: Facts) -> dict[str, Any]:
    """The settings of `read_common` for a rope of layers with full attention and one of layers with a window."""
    group = facts.raw.get("rope_parameters")
    if not isinstance(group, Mapping) or not set(cast("Mapping[str, Any]", group)) <= KINDS or not group:
        return {}
    absent = facts.hints.defaults.get("rope_parameters")
    thetas: dict[str, float] = {}
    for kind in KINDS:
        theta = table_of(table_of(absent).get(kind)).get("rope_theta")
        thetas[kind] = float(theta) if isinstance(theta, int | float) else 10000.0
    return {"theta": thetas["full_attention"], "local_theta": thetas["sliding_attention"]}


def table_of(value: object) -> Mapping[str, Any]:
    """A table of config.json; {} for another value, which the config class reports."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
