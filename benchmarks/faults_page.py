"""The text of docs/faults.md: a table of mutations, counts, and the output of each tool."""

from __future__ import annotations

import datetime
import math
import platform
import re
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from tests.check.mutations.answer import answer_text, answer_to, names, printed
from tests.check.mutations.mutation import PAINS, Mutation

SAME = 1e-4  # logits that differ by less are equal: sums in another order, values rounded once more
NOT_RUN = "not run"
UNREAD = "does not load the valid checkpoint either"
LINES = 14  # of what a tool printed, at most


@dataclass
class Outcome:
    """What a tool printed, and its logits float32 [1, 12, V] if it loads the checkpoint.

    `off` is their largest absolute difference from the logits of the valid checkpoint; `reads`: whether the tool loads
    the valid checkpoint.
    """

    exit_code: int
    text: str
    logits: np.ndarray | None
    off: float | None = None
    reads: bool = True

    def compare(self, sound: Outcome) -> None:
        """Sets `off` and `reads` from the outcome of the valid folder; if the vocabularies differ in size, the tokens
        that both have are compared.

        Lines that are printed for the valid folder too are removed.
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
            return "raises an error"
        if self.text:
            return "loads with a warning"
        return "loads silently, other logits" if self._moved else "loads silently, equal logits"

    @property
    def _moved(self) -> bool:
        return self.off is not None and not self.off <= SAME

    def verdict(self) -> str:
        """For the table."""
        if self.exit_code:
            raised = re.findall(r"^(\w+(?:Error|Exception|NotFound\w*)):", self.text, re.MULTILINE)
            said = f"raises {raised[-1]}" if raised else f"exit {self.exit_code}"
            return said if self.reads else f"{said}, also for the valid checkpoint"
        return f"loads {'with a warning' if self.text else 'silently'}; {self._logits()}"

    def _logits(self) -> str:
        if not self.reads:
            return "the valid checkpoint does not load"
        if self.off is None:
            return "no logits"
        if math.isnan(self.off):
            return "logits are NaN"
        return f"logits differ by {self.off:.2g}" if self._moved else "equal logits"

    def as_markdown(self) -> str:
        """For the page, as Markdown."""
        lines = self.text.splitlines()
        cut = [*lines[:LINES], f"… ({len(lines) - LINES} lines more)"] if len(lines) > LINES + 1 else lines
        said = "\n".join(["```text", *cut, "```", ""]) if lines else ""
        end = f"Exit {self.exit_code}." if self.exit_code else f"Loads, exit 0; {self._logits()}."
        return f"{said}\n{end}" if said else end


def _without_numbers(line: str) -> str:
    """A line without the parts that differ from run to run: numbers, and paths of temporary folders."""
    return re.sub(r"/tmp/\S+|[0-9.]+", "", line).strip()


@dataclass(frozen=True)
class Row:
    """One mutation. An outcome is None if the mistake does not apply to the tool, or the tool was not run."""

    mutation: Mutation
    transformers: Outcome | None
    max: Outcome | None

    def line(self) -> str:
        m = self.mutation
        theirs = (outcome.verdict() if outcome else NOT_RUN for outcome in (self.transformers, self.max))
        return f"| [{m.title}](#{anchor(m)}) ({m.base}) | {m.pain} | {answer_text(m)} | {' | '.join(theirs)} |"

    def section(self, tools: tuple[str, str]) -> list[str]:
        m = self.mutation
        lines = ["", f"## {m.title}", "", f"Category {m.pain}: {PAINS[m.pain]}. Source: {m.seen}.", ""]
        lines += ["bringup:", "", "```text", printed(m), "```"]
        for tool, outcome in zip(tools, (self.transformers, self.max), strict=True):
            if outcome:
                lines += ["", f"{tool}:", "", outcome.as_markdown()]
        return lines


def anchor(mutation: Mutation) -> str:
    """The anchor that GitHub derives from the heading."""
    return re.sub(r"[^a-z0-9_ -]", "", mutation.title.lower()).replace(" ", "-")


def _found(rows: list[Row]) -> int:
    """The number of mutations for which bringup reports one finding, with the expected code and name."""
    answers = [(row.mutation, answer_to(row.mutation).findings) for row in rows]
    return sum(len(f) == 1 and f[0].code == m.code and names(f[0], m.names) for m, f in answers)


@dataclass(frozen=True)
class Subject:
    """The subject of a page: its title after the count, the folders that the tools load, and its tests."""

    title: str
    folders: tuple[str, ...]
    options: str
    tests: str
    torch: str = version("torch")  # the version that transformers uses


def page(rows: list[Row], subject: Subject, tools: tuple[str, str], oldest: datetime.date) -> str:
    """The complete page; `tools` are the peers' names and versions, `oldest` is the date of their oldest outcome."""
    kinds = (
        "raises an error", "loads with a warning", "loads silently, other logits", "loads silently, equal logits",
        UNREAD,
    )  # fmt: skip
    columns = [row.transformers for row in rows], [row.max for row in rows]
    counts = [Counter(outcome.kind if outcome else NOT_RUN for outcome in column) for column in columns]
    phases = Counter(answer_to(row.mutation).phase for row in rows)
    early = ", ".join(f"{count} by `{phase}`" for phase, count in phases.items())
    lines = [
        f"# {len(rows)} {subject.title}",
        "",
        f"bringup finds {_found(rows)} of {len(rows)} and names the parameter, module, tensor, key or file that is",
        f"wrong, with one diagnostic each: {early}. The other tools:",
        "",
        f"| | {tools[0]} | {tools[1]} |",
        "|---|---|---|",
        *(f"| {kind} | {counts[0][kind]} | {counts[1][kind]} |" for kind in kinds if counts[0][kind] + counts[1][kind]),
        f"| {NOT_RUN}, or does not apply | {counts[0][NOT_RUN]} | {counts[1][NOT_RUN]} |",
        "",
        *subject.folders,
        "`logits differ by` is the largest difference from the logits of the valid folder, over 12 tokens; below",
        f"{SAME:g} they count as equal.",
        "",
        "The command that finds a mistake is in parentheses. `check` reads headers only. `compile` checks values as it",
        "writes them. `verify` compares with transformers on the same checkpoint, so it finds mistakes in rules and",
        "graphs. If the file itself is wrong, and its names and shapes fit, every tool computes the same wrong logits;",
        "`verify --against` compares with activations saved before the model was converted (`verify --save`).",
        "`reverse` restores the published layout from the arrays.",
        "",
        f"Written on {datetime.date.today()} by `python -m benchmarks.faults{subject.options}`, with bringup",
        f"{version('bringup')}, {tools[0]} (torch {subject.torch}), {tools[1]}, Python",
        f"{platform.python_version()}, on CPU. The mutations are the table of {subject.tests}; its tests compare",
        "the column of bringup on this page with what bringup reports. The outcomes of the other tools are of",
        f"{oldest} or later.",
        "",
        f"| mistake | category | bringup | {tools[0]} | {tools[1]} |",
        "|---|---|---|---|---|",
        *(row.line() for row in rows),
        "",
        "Categories, ordered by how frequent and how harmful they are: "
        + "; ".join(f"{number} {pain}" for number, pain in PAINS.items())
        + ".",
    ]
    for row in rows:
        lines += row.section(tools)
    return "\n".join(lines).rstrip() + "\n"
