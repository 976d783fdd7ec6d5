"""The draft of `bringup init`, and its questions, as text."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.render.visible import visible
from bringup.render.words import plural

LONG = 120  # characters of rules that are printed

if TYPE_CHECKING:
    from bringup.compile.draft.draft import Draft


def draft_text(found: Draft, folder: Path, source: str) -> str:
    """The files, the hints, every question with its file and line, and the next commands."""
    lines = [f"wrote {len(found.files)} files to {visible(str(folder))}: {', '.join(found.files)}"]
    lines.append(f"{plural(found.rules, 'rule')} proved, {plural(found.open, 'tensor')} without a rule")
    if found.served:
        lines.append(f"note: `{found.served}` supports this architecture already")
    lines += [f"hint: {hint}" for hint in found.hints]
    lines += [f"note: {found.absent}"] if found.absent else []
    for question in found.questions:
        lines += ["", f"? {question.number}. {visible(question.text)}  [{_place(found, question.number)}]"]
        for at, choice in enumerate(question.choices):
            lines.append(f"     {'  or' if at else 'here'}: {_short(visible(choice))}")
    model, source = shlex.quote(str(folder / f"{found.name}.py")), shlex.quote(source)
    lines += ["", "next:"]
    if any(not each.text.startswith("GGUF") for each in found.questions):
        lines.append("  the questions: `bringup explain adding-a-model`, section 1, has what to write for each kind")
    lines += [visible(f"  bringup {word} {model} --checkpoint {source}") for word in ("check", "verify")]
    return "\n".join(lines) + "\n"


def _short(choice: str) -> str:
    """A choice whose rules are long, without them: the file has them."""
    meaning, _, rules = choice.partition(": ")
    return f"{meaning} (rules in the file)" if len(rules) > LONG else choice


def _place(found: Draft, number: int) -> str:
    """File and line of a question's first comment."""
    for name, text in found.files.items():
        for at, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith(f"# ? {number}. "):
                return f"{name}:{at}"
    return "everywhere"
