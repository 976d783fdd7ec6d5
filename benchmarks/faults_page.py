"""docs/faults.md as text: a table of mutations, counts, and what each tool said."""

from __future__ import annotations

import datetime
import math
import platform
import re
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from tests.check.mutations.answer import answer_text, answer_to, names
from tests.check.mutations.mutation import PAINS, Mutation

SAME = 1e-4  # logits nearer than this are the same: sums in another order, values rounded once more
NOT_RUN = "not run"
UNREAD = "does not load the sound checkpoint either"
LINES = 14  # of what a tool printed, at most


@dataclass
class Outcome:
    """What a tool printed, its logits if it loads, and how far these are `off` those of the sound checkpoint.

    `reads` says whether it loads the sound one.
    """

    exit_code: int
    text: str
    logits: np.ndarray | None
    off: float | None = None
    reads: bool = True

    def compare(self, sound: Outcome) -> None:
        """With the outcome of the sound folder; of vocabularies of two sizes, the tokens that both have.

        Lines that are printed of the sound folder as well say nothing of a mistake.
        """
        self.reads = not sound.exit_code
        usual = {_without_numbers(line) for line in sound.text.splitlines()} if self.reads else set[str]()
        lines = [line for line in self.text.splitlines() if not line or _without_numbers(line) not in usual]
        self.text = "\n".join(lines).strip()
        if self.logits is not None and sound.logits is not None:
            vocab = min(self.logits.shape[-1], sound.logits.shape[-1])
            self.off = float(np.abs(self.logits[..., :vocab] - sound.logits[..., :vocab]).max())

    @property
    def kind(self) -> str:
        """For the counts."""
        if not self.reads:
            return UNREAD
        if self.exit_code:
            return "stops"
        if self.text:
            return "loads with a warning"
        return "loads in silence, other logits" if self._moved else "loads in silence, the same logits"

    @property
    def _moved(self) -> bool:
        return self.off is not None and not self.off <= SAME

    def verdict(self) -> str:
        """For the table."""
        if self.exit_code:
            raised = re.findall(r"^(\w+(?:Error|Exception|NotFound\w*)):", self.text, re.MULTILINE)
            said = f"raises {raised[-1]}" if raised else f"exit {self.exit_code}"
            return said if self.reads else f"{said}, of the sound one too"
        return f"loads, {'warns' if self.text else 'says nothing'}; {self._logits()}"

    def _logits(self) -> str:
        if not self.reads:
            return "it does not load the sound one"
        if self.off is None:
            return "no logits"
        if math.isnan(self.off):
            return "the logits are NaN"
        return f"logits off by {self.off:.2g}" if self._moved else "the same logits"

    def as_markdown(self) -> str:
        """For the page, as Markdown."""
        lines = self.text.splitlines()
        cut = [*lines[:LINES], f"… ({len(lines) - LINES} lines more)"] if len(lines) > LINES + 1 else lines
        said = "\n".join(["```text", *cut, "```", ""]) if lines else ""
        end = f"Exit {self.exit_code}." if self.exit_code else f"Loads, exit 0; {self._logits()}."
        return f"{said}\n{end}" if said else end


def _without_numbers(line: str) -> str:
    """A line without what differs from run to run: numbers, and the ends of scratch folders' names."""
    return re.sub(r"/tmp/\S+|[0-9.]+", "", line).strip()


@dataclass(frozen=True)
class Row:
    """One mutation. An outcome is None where the tool has no place for the mistake, or was not run."""

    mutation: Mutation
    transformers: Outcome | None
    max: Outcome | None

    def line(self) -> str:
        m = self.mutation
        theirs = (outcome.verdict() if outcome else NOT_RUN for outcome in (self.transformers, self.max))
        return f"| [{m.title}](#{anchor(m)}) ({m.base}) | {m.pain} | {answer_text(m)} | {' | '.join(theirs)} |"

    def section(self, tools: tuple[str, str]) -> list[str]:
        m = self.mutation
        said = [
            f"{finding.severity}[{finding.code}]: {_short(finding.message, m)}\n  = help: {_short(finding.help, m)}"
            for finding in answer_to(m).findings
        ]
        lines = ["", f"## {m.title}", "", f"Pain {m.pain}, {PAINS[m.pain]}; seen in {m.seen}.", ""]
        lines += ["bringup:", "", "```text", *said, "```"]
        for tool, outcome in zip(tools, (self.transformers, self.max), strict=True):
            if outcome:
                lines += ["", f"{tool}:", "", outcome.as_markdown()]
        return lines


def anchor(mutation: Mutation) -> str:
    """As GitHub makes it of the heading."""
    return re.sub(r"[^a-z0-9_ -]", "", mutation.title.lower()).replace(" ", "-")


def _short(text: str, mutation: Mutation) -> str:
    """Without the scratch folder."""
    return re.sub(rf"[^`\s(]*/(?={mutation.key}\b)", "", text)


def _found(rows: list[Row]) -> int:
    """Mutations that bringup answers with one finding, of the right code and name."""
    answers = [(row.mutation, answer_to(row.mutation).findings) for row in rows]
    return sum(len(f) == 1 and f[0].code == m.code and names(f[0], m.names) for m, f in answers)


@dataclass(frozen=True)
class Subject:
    """What a page is about: its title after the count, the folders that tools are given, and its tests."""

    title: str
    folders: tuple[str, ...]
    options: str
    tests: str
    torch: str = version("torch")  # that of transformers


def page(rows: list[Row], subject: Subject, tools: tuple[str, str]) -> str:
    """The whole page; `tools` are the peers' names and versions."""
    kinds = (
        "stops", "loads with a warning", "loads in silence, other logits", "loads in silence, the same logits", UNREAD,
    )  # fmt: skip
    columns = [row.transformers for row in rows], [row.max for row in rows]
    counts = [Counter(outcome.kind if outcome else NOT_RUN for outcome in column) for column in columns]
    phases = Counter(answer_to(row.mutation).phase for row in rows)
    early = ", ".join(f"{count} by `{phase}`" for phase, count in phases.items())
    lines = [
        f"# {len(rows)} {subject.title}",
        "",
        f"bringup finds {_found(rows)} of {len(rows)} and names the parameter, module, tensor, key or file that is",
        f"wrong, with one diagnostic each: {early}. Of the others:",
        "",
        f"| | {tools[0]} | {tools[1]} |",
        "|---|---|---|",
        *(f"| {kind} | {counts[0][kind]} | {counts[1][kind]} |" for kind in kinds if counts[0][kind] + counts[1][kind]),
        f"| {NOT_RUN}, or has no place for the mistake | {counts[0][NOT_RUN]} | {counts[1][NOT_RUN]} |",
        "",
        *subject.folders,
        f"`off by` compares the logits of 12 tokens with those of the sound folder; what is nearer than {SAME:g}",
        "counts as the same.",
        "",
        "What finds it: `check` reads headers only. `compile` looks at the values as it writes them. `verify` compares",
        "with transformers on the same checkpoint, and so finds what is wrong in rules and graphs. What is wrong in",
        "the file itself, with names and shapes that fit, any tool computes alike: it takes activations that were",
        "saved from the model before it was converted (`verify --save`), to which `verify --against` holds it.",
        "`reverse` takes the arrays back to the published layout.",
        "",
        f"Written on {datetime.date.today()} by `python benchmarks/faults.py{subject.options}`, with bringup",
        f"{version('bringup')}, {tools[0]} (torch {subject.torch}), {tools[1]}, Python",
        f"{platform.python_version()}, on CPU. The mutations are the table of {subject.tests}, whose tests hold",
        "this page's column to what bringup says.",
        "",
        f"| mistake | pain | bringup | {tools[0]} | {tools[1]} |",
        "|---|---|---|---|---|",
        *(row.line() for row in rows),
        "",
        "Pains, in the order of how often and how badly they hurt: "
        + "; ".join(f"{number} {pain}" for number, pain in PAINS.items())
        + ".",
    ]
    for row in rows:
        lines += row.section(tools)
    return "\n".join(lines).rstrip() + "\n"
