"""What transformers' experts compute: how they store their matrices, the clamped SwiGLU, sinks of attention."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bringup.compile.draft.modelling.part import Part
from bringup.compile.draft.modelling.stated import Meaning

CLAMPED = (  # the SwiGLU of gpt-oss
    r"gate, up = \(gate_up\[\.\.\., ::2\], gate_up\[\.\.\., 1::2\]\)",
    r"gate = gate\.clamp\(min=None, max=config\.(?P<limit>\w+)\)",
    r"up = up\.clamp\(min=-config\.(?P<low>\w+), max=config\.(?P<high>\w+)\)",
    r"glu = gate \* torch\.sigmoid\(gate \* config\.(?P<alpha>\w+)\)",
    r"gated_output = \(up \+ 1\) \* glu",
    r"return gated_output",
)
PRODUCT = re.compile(r"\w+ = \w+ @ self\.(\w+)\[expert_idx\] \+ self\.\1_bias\[expert_idx\]")
HALVES = re.compile(r"\w+ = self\.(act_fn|activation)\((\w+)\[0\]\) \* \2\[1\]")


def experts_of(rest: list[str], part: Part, meaning: Meaning) -> Iterator[str]:
    """Writes what a part states of experts to `meaning`; returns the statements that remain."""
    matches = [re.fullmatch(form, text) for form, text in zip(CLAMPED, part.statements, strict=False)]
    names: dict[str, str] = {}
    for match in matches:
        names |= match.groupdict() if match else {}
    clamped = (
        part.name.endswith("Experts")
        and len(matches) == len(CLAMPED)
        and all(matches)
        and names["limit"] == names["low"] == names["high"]
    )
    if clamped:
        meaning.clamped, meaning.gate_turns = (names["alpha"], names["limit"]), True
    own = part.statements[: len(CLAMPED)] if clamped else []
    for text in rest:
        if clamped and re.fullmatch(r"\w+ = \w+ \* routing_weights\[token_idx, top_k_pos, None\]", text):
            continue
        if clamped and PRODUCT.fullmatch(text):
            meaning.experts_in_out = True
        elif (match := HALVES.fullmatch(text)) and any(
            each.startswith(f"{match[2]} = ") and each.endswith(".chunk(2, dim=-1)") for each in part.statements
        ):
            meaning.gate_first = True
        elif text not in own and not re.fullmatch(r"if expert_idx == config\.\w+", text):
            yield text
