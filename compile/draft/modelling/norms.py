"""The order of norms, attention and MLP in a layer of transformers' code."""

from __future__ import annotations

import re

from bringup.compile.draft.modelling.part import Part
from bringup.compile.draft.modelling.stated import Meaning

SUM = re.compile(r"(?:hidden_states = |return )\(?(?:residual \+ |(?:\w+ \+ )?\w+ \+ residual$)")
ORDERS = {  # norms (n), attention (a), MLP (m) and sums (+) in a layer: the position of norms, and the norms' numbers
    "na+nm+": ("before", "12"), "nan+nmn+": ("around", "1234"), "an+mn+": ("after", "24"), "nam+": ("parallel", "1"),
}  # fmt: skip


def norms_of(part: Part, meaning: Meaning) -> None:
    """The order of the parts of a layer, and the roles that it gives to norms."""
    kinds = {name: kind_of(text) for name, text in part.attributes.items()}
    if not {"a", "m"} <= set(kinds.values()):
        return
    order, names = "", list[str]()
    for text in part.statements:
        for name in re.findall(r"self\.(\w+)\(", text):
            if kinds.get(name):
                order += kinds[name]
                names += [name] if kinds[name] == "n" else []
        if SUM.match(text):
            order += "+"
    if order in ORDERS:
        meaning.norms, numbers = ORDERS[order]
        meaning.norm_roles = {name: f"norm_{number}" for name, number in zip(names, numbers, strict=True)}


def kind_of(text: str) -> str:
    """`n` for the expression of a norm, `a` of attention, `m` of an MLP, '' for another."""
    call = re.match(r"(?:nn\.)?(\w+)\(", text)
    word = call[1] if call else ""
    if word.endswith("Norm"):
        return "n"
    if word.endswith("Attention"):
        return "a"
    return "m" if re.search("MLP|Moe|MoE|FeedForward", word) else ""
