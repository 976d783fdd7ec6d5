"""Sigmoid routing with a bias for the selection, recognised in transformers' code: what `SigmoidRouter` computes.

The statements of a router are compared one by one, in order, with the steps below; names of variables and of config
keys may be any. A router with another statement is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bringup.compile.draft.modelling.part import Part

_TOTAL = r"<weights>\.sum\(dim=-1, keepdim=True\)"
_DIVISIONS = (
    (r"<sum> = " + _TOTAL + r" \+ 1e-20", r"<weights> /= <sum>"),
    (r"<sum> = " + _TOTAL + r" \+ 1e-20", r"<weights> = <weights> / <sum>"),
    (r"<weights> /= " + _TOTAL,),
    (r"<weights> = <weights> / " + _TOTAL,),
    (r"<weights> = <weights> / \(" + _TOTAL + r" \+ 1e-20\)",),
)
_LAST = r"dim=-1(?:, sorted=False)?\)"
# Each step has alternatives, each of them several statements; the empty one omits the step. `<name>` is any name, and
# the same one wherever it occurs.
STEPS: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((r"_, _, <width> = <x>\.shape", r"<x> = <x>\.view\(-1, <width>\)"),
     (r"<x> = <x>\.(?:view|reshape)\(-1, (?:config\.hidden_size|<x>\.shape\[-1\])\)",), ()),
    ((r"<logits> = F\.linear\(<x>(?:\.type\(torch\.float32\)|\.to\(self\.weight\.dtype\))?, "
      r"self\.weight(?:\.type\(torch\.float32\))?\)",),
     (r"<logits> = self\.gate\(<x>\)\.to\(torch\.float32\)",)),
    ((r"<scores> = <logits>\.sigmoid\(\)",), (r"<scores> = (?:nn\.functional|F|torch)\.sigmoid\(<logits>\)",)),
    ((r"<by> = <scores> \+ self\.<own_bias>",), (r"<by> = <scores> \+ <bias>",), ()),
    ((r"<group> = <by>\.view\(-1, config\.<groups>, config\.<experts> // config\.<groups>\)"
      r"\.topk\(2, dim=-1\)\[0\]\.sum\(dim=-1\)",
      r"<best> = torch\.topk\(<group>, (?:k=)?config\.<topk_groups>, " + _LAST + r"\[1\]",
      r"<zeros> = torch\.zeros_like\(<group>\)",
      r"<zeros>\.scatter_\(1, <best>, 1\)",
      r"<mask> = <zeros>\.unsqueeze\(-1\)\.expand\(-1, config\.<groups>, config\.<experts> // config\.<groups>\)"
      r"\.reshape\(-1, config\.<experts>\)",
      r"<by> = <by>\.masked_fill\(~<mask>\.bool\(\), float\('-inf'\)\)"), ()),
    ((r"_, <chosen> = torch\.topk\(<scores> \+ <bias>, (?:k=)?config\.<per_token>, dim=1\)",),
     (r"<chosen> = torch\.topk\(<by>, (?:k=)?config\.<per_token>, " + _LAST + r"\[1\]",),
     (r"_, <chosen> = torch\.topk\(<by>, (?:k=)?config\.<per_token>, " + _LAST,)),
    ((r"<weights> = <scores>\.gather\((?:dim=)?1, (?:index=)?<chosen>\)",),),
    (*((r"if config\.<normalise>", *forms, "end") for forms in _DIVISIONS), *_DIVISIONS, ()),
    ((r"<weights> = <weights> \* config\.<factor>",), ()),
    ((r"<result> = <weights>", r"return \(<logits>, <result>, <chosen>\)"),
     (r"return \(<logits>, <weights>, <chosen>\)",)),
)  # fmt: skip


# The same of softmax scores, to which another module adds the bias.
SOFTMAX_STEPS: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((r"device_type = hidden_states\.device\.type if isinstance\(hidden_states\.device\.type, str\) else 'cpu'",), ()),
    ((r"<logits> = F\.linear\(<x>, self\.weight\)",),),
    ((r"<scores> = F\.softmax\(<logits>, dim=1, dtype=torch\.float\)",),),
    ((r"_, <chosen> = torch\.topk\(self\.<adder>\(<scores>\), config\.<per_token>, dim=-1\)",),),
    ((r"<weights> = torch\.gather\(<scores>, dim=-1, index=<chosen>\)",),),
    ((r"<weights> = <weights> / torch\.clamp\(" + _TOTAL + r", min=config\.<least>\)",),),
    ((r"<weights> = <weights>\.to\(\w+\.dtype\)",), ()),
    ((r"return \(<logits>, <weights>, <chosen>\)",),),
)


@dataclass(frozen=True, slots=True)
class Routing:
    """`bias`: the name of the tensor that is added for the selection. The others are config keys, '' for none:
    `per_token` experts of the `topk_groups` best of `groups`; `normalise`: whether weights are divided by their sum,
    which is `always` done without a key; `factor` multiplies them. `least`: the
    smallest sum that softmax scores are divided by, '' for sigmoid scores."""

    bias: str
    per_token: str
    groups: str
    topk_groups: str
    normalise: str
    always: bool
    factor: str
    least: str = ""


def routing_of(part: Part, parts: Mapping[str, Part]) -> Routing | None:
    """The routing that a part computes, if the draft's modules do the same; None for any other part.

    A module must pass its second result to the experts as the weights, and the third as the selection.
    """
    texts = [re.sub(r"\.float\(\)", "", text) for text in part.every]
    names = _names(texts, STEPS)
    if names is None and (names := _names(texts, SOFTMAX_STEPS)) is not None:
        adder = part.attributes.get(names["adder"], "").partition("(")[0]
        added = next((other.statements for other in parts.values() if other.name == adder), list[str]())
        match = re.fullmatch(r"return \w+ \+ self\.(\w+)\.squeeze\(\)", added[0]) if len(added) == 1 else None
        names = {**names, "own_bias": match[1]} if match else None
    if names is None or not {"bias", "own_bias"} & names.keys():
        return None
    argument = rf".*self\.{names['bias']}" if "bias" in names else ""
    call = re.compile(rf"_, (\w+), (\w+) = self\.\w+\(\w+{argument}\)")
    calls = [(match, other) for other in parts.values() for text in other.every if (match := call.fullmatch(text))]
    for match, other in calls:
        if not any(re.search(rf"self\.experts\(\w+, {match[2]}, {match[1]}\)", text) for text in other.every):
            return None
    if not calls:
        return None
    return Routing(
        bias=names.get("own_bias") or names["bias"],
        per_token=names["per_token"],
        groups=names.get("groups", ""),
        topk_groups=names.get("topk_groups", ""),
        normalise=names.get("normalise", ""),
        always="normalise" not in names and any("sum(dim=-1, keepdim=True)" in text for text in part.every),
        factor=names.get("factor", ""),
        least=names.get("least", ""),
    )


def _names(statements: Iterable[str], steps: tuple[tuple[tuple[str, ...], ...], ...]) -> dict[str, str] | None:
    """The names in the statements of a router, None unless they are these steps."""
    rest, names = list(statements), dict[str, str]()
    for step in steps:
        found = next((found for forms in step if (found := _matched(forms, rest, names)) is not None), None)
        if found is None:
            return None
        names, rest = found
    return names if not rest else None


def _matched(forms: tuple[str, ...], rest: list[str], names: dict[str, str]) -> tuple[dict[str, str], list[str]] | None:
    """The names after the first statements, and the other statements; None if a statement has another form."""
    names = dict(names)
    if len(rest) < len(forms):
        return None
    for form, text in zip(forms, rest, strict=False):
        match = re.fullmatch(_pattern(form, names), text)
        if match is None:
            return None
        names |= match.groupdict()
    return names, rest[len(forms) :]


def _pattern(form: str, names: Mapping[str, str]) -> str:
    """The regular expression of a form: known names as they are, others as groups."""
    new: set[str] = set()

    def group(name: re.Match[str]) -> str:
        if name[1] in names:
            return re.escape(names[name[1]])
        if name[1] in new:
            return f"(?P={name[1]})"
        new.add(name[1])
        return rf"(?P<{name[1]}>\w+)"

    return re.sub(r"<(\w+)>", group, form)
