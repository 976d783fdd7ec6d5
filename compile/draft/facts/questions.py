"""Questions of a draft, and their text as comments of a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bringup.compile.draft.facts.quoted import one_line
from bringup.shown import short


@dataclass(slots=True)
class Question:
    """A question that neither names nor shapes answer. `choices`: the draft's answer first, then the alternatives."""

    number: int
    text: str
    choices: tuple[str, ...] = ()


def comment(question: Question, indent: str = "        ") -> str:
    """A question as comments, one choice on each line."""
    lines = [f"{indent}# ? {question.number}. {one_line(question.text)}"]
    for at, choice in enumerate(question.choices):
        lines.append(f"{indent}#      {'  or' if at else 'here'}: {one_line(choice)}")
    return "\n".join(lines) + "\n"


def listed_layers(layers: Iterable[int]) -> str:
    """The numbers of layers, in order; many are abbreviated."""
    return short(", ".join(map(str, sorted(layers))))
