"""Writes docs/faults.md: what bringup, transformers and MAX say of the same eleven spoilt checkpoints.

    python benchmarks/faults.py [--max-python PATH/TO/ENV/bin/python]

The folders are small random models that transformers saves; each is spoilt by tests/check/faults.py. MAX runs in an
environment of its own (`pip install max==26.7.0 safetensors`); without one its column says "not run".
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.check.faults import (  # noqa: E402
    FAULTS,
    GPT2,
    LLAMA,
    MIXTRAL,
    Draft,
    Family,
    Fault,
    read_draft,
    tiny,
    write_draft,
)

PAGE = ROOT / "docs/faults.md"
MAX_SCRIPT = ROOT / "benchmarks/faults_max.py"
SHOWN_ON = {"rope": LLAMA, "hole": MIXTRAL}  # the others on GPT-2
TRANSFORMERS = """
import sys, numpy as np, torch, transformers
transformers.utils.logging.disable_progress_bar()
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    logits = model(torch.arange(12)[None]).logits
np.save(sys.argv[1] + "/logits.npy", logits.float().numpy())
"""
NOT_RUN = "not run"


@dataclass(frozen=True)
class Outcome:
    """What a tool printed, and how far the logits are from those of the sound checkpoint if it loads."""

    exit_code: int
    text: str
    off: float | None = None

    def verdict(self) -> str:
        """For the table."""
        if self.exit_code:
            raised = re.findall(r"^(\w+(?:Error|Exception)):", self.text, re.MULTILINE)
            return f"raises {raised[-1]}" if raised else f"exit {self.exit_code}"
        if not self.text:
            return "loads, says nothing"
        return "loads with a warning"

    def told(self) -> str:
        """For the page, as Markdown."""
        said = f"```text\n{self.text}\n```\n\n" if self.text else ""
        if self.exit_code:
            return f"{said}Exit {self.exit_code}."
        end = "Loads, exit 0" + ("; it says nothing." if not self.text else ".")
        if self.off is None:
            return said + end
        same = f" The logits are off by up to {self.off:.2g}." if self.off else " The logits are the same."
        return said + end + same


def run(words: Iterable[object], folder: Path) -> tuple[int, str]:
    """A command's exit code and all that it printed; the folder's own path is left out."""
    quiet = {"NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "default", "COLUMNS": "110"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env=os.environ | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    text = re.sub(r"\x1b\[[0-9;]*m|^compiled \w+ on the fly .*\n", "", done.stdout, flags=re.MULTILINE)
    text = text.replace(f"{folder.parent}/", "")
    return done.returncode, "\n".join(line.rstrip() for line in text.strip().splitlines())


def last_error(text: str) -> str:
    """A traceback's last paragraph; what was printed before it stays."""
    before, trace, rest = text.partition("Traceback (most recent call last):")
    if not trace:
        return text
    lines = rest.rpartition("Traceback (most recent call last):")[2].splitlines()
    start = max(n for n, line in enumerate(lines) if line.startswith("  File "))
    error = next(n for n, line in enumerate(lines) if n > start and line and not line.startswith(" "))
    return (before + "\n".join(lines[error:])).strip()


class Tools:
    """Runs the three on a folder; logits are compared with those of the family's sound folder."""

    def __init__(self, scratch: Path, max_python: str | None) -> None:
        self.scratch, self.max_python = scratch, max_python
        self.sound: dict[tuple[str, str], np.ndarray] = {}

    def bringup(self, folder: Path, family: Family, adapter: Path | None) -> Outcome:
        model = [Path(family.model).relative_to(ROOT)] if family.model else []
        rules = ["--adapter", adapter.relative_to(ROOT)] if adapter else []
        words = ["check", *model, "--checkpoint", folder, *rules]
        code, text = run([Path(sys.executable).with_name("bringup"), *words], folder)
        typed = " ".join(map(str, ["bringup", *words])).replace(f"{folder.parent}/", "")
        return Outcome(code, f"$ {typed}\n{text}")

    def transformers(self, folder: Path, family: Family) -> Outcome:
        return self._loaded("transformers", family, [sys.executable, "-c", TRANSFORMERS, folder], folder)

    def max(self, folder: Path, family: Family, *options: str) -> Outcome | None:
        """None where there is nothing to run: no MAX, or no graph of ours for it."""
        if self.max_python is None or family is not GPT2:
            return None
        return self._loaded("max", family, [self.max_python, MAX_SCRIPT, folder, *options], folder)

    def _loaded(self, tool: str, family: Family, words: list[object], folder: Path) -> Outcome:
        code, text = run(words, folder)
        logits = folder / "logits.npy"
        if code or not logits.exists():
            return Outcome(code, last_error(text))
        ours = np.load(logits)
        logits.unlink()
        sound = self.sound.setdefault((tool, family.name), ours)
        vocab = min(ours.shape[-1], sound.shape[-1])
        return Outcome(0, text, float(np.abs(ours[..., :vocab] - sound[..., :vocab]).max()))


def square_transposed(draft: Draft) -> Draft:
    """What a conversion script writes that forgets the square matrix."""
    draft = draft.copy()
    for layer in range(draft.depth):
        name = draft.name(draft.family.square, layer)
        draft.replace(name, draft.tensors[name].T)
    return draft


def case(tools: Tools, fault: Fault, sound: Draft) -> tuple[Outcome, Outcome, Outcome | None]:
    """The three tools on one fault."""
    family, draft = sound.family, sound.copy()
    fault.spoil(draft)
    folder = write_draft(draft, tools.scratch / fault.key)
    ours = tools.bringup(folder, family, fault.adapter(family))
    assert ours.exit_code == 1, ours.text
    if fault.key != "square":
        return ours, tools.transformers(folder, family), tools.max(folder, family)
    converted = write_draft(square_transposed(sound), tools.scratch / "square-converted")
    return ours, tools.transformers(converted, family), tools.max(folder, family, "--forget", family.square)


NOTES = {
    "square": """
        transformers has no rules: it is given the folder that a conversion script with the same mistake writes. (In
        that folder no tool can see it, bringup neither: names and shapes are right.) MAX's user transposes in Python,
        and leaves this one out.""",
    "headless": """
        The sound checkpoint is tied, so that it has no head. MAX's graph is our own; it declares `lm_head.weight` where
        the config unties it.""",
    "deeper": """
        MAX's graph is our own; it takes the number of layers from the config.""",
    "extra": """
        MAX's `compile(weights=)` looks up the names that it wants. Its `load_state_dict`, which is strict, was not run
        here.""",
    "hole": """
        The model file is tests/check/mixtral_graph.py, the form in which users add their own.""",
}


def page(cases: list[tuple[Fault, Family, tuple[Outcome, Outcome, Outcome | None]]], max_version: str) -> str:
    names = f"transformers {version('transformers')}", f"MAX {max_version}" if max_version else "MAX"
    tools = f"{names[0]} (torch {version('torch')})" + (f", {names[1]}" if max_version else "")
    lines = [
        "# Eleven faults, and who finds them",
        "",
        "The same spoilt folder is given to `bringup check`, to transformers' `from_pretrained`, and, for GPT-2, to",
        "MAX: the model written on its Python API and fed with the folder's weights. What they print is below, word",
        "for word; of tracebacks, the error. Small random models (3 layers, 32 wide; Mixtral 2 layers, 4 experts)",
        "stand in for the published ones: names, layouts and configs are those that transformers writes. `off by`",
        "compares the logits of 12 tokens with those of the sound folder.",
        "",
        f"Written on {datetime.date.today()} by",
        "",
        f"    python benchmarks/faults.py{' --max-python PATH' if max_version else ''}",
        "",
        f"with bringup {version('bringup')}, {tools}, Python {platform.python_version()}, on CPU. The faults are the",
        "functions of tests/check/faults.py; tests hold bringup to its answers, on full-size headers too, and to one",
        "diagnostic each when all of them are in one checkpoint.",
        "",
        f"| fault | bringup | {names[0]} | {names[1]} |",
        "|---|---|---|---|",
    ]
    for fault, family, (ours, theirs, other) in cases:
        anchor = re.sub(r"[^a-z0-9 -]", "", fault.title.lower()).replace(" ", "-")
        code = re.search(r"error\[(\w+)\]", ours.text)
        found = f"exit {ours.exit_code}, {code.group(1) if code else ''}"
        last = other.verdict() if other else NOT_RUN
        lines.append(f"| [{fault.title}](#{anchor}) ({family.name}) | {found} | {theirs.verdict()} | {last} |")
    for fault, _, (ours, theirs, other) in cases:
        lines += ["", f"## {fault.title}", ""]
        if fault.key in NOTES:
            lines += [" ".join(NOTES[fault.key].split()), ""]
        lines += ["bringup:", "", f"```text\n{ours.text}\n```", "", f"{names[0]}:", "", theirs.told(), ""]
        lines += [f"{names[1]}:", "", other.told() if other else "Not run."]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-python", metavar="PATH", help="an interpreter that has max and safetensors")
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    max_version = ""
    if asked.max_python:
        script = "from importlib.metadata import version; print(version('max'))"
        max_version = subprocess.check_output([asked.max_python, "-c", script], text=True).strip()
    cases: list[tuple[Fault, Family, tuple[Outcome, Outcome, Outcome | None]]] = []
    with tempfile.TemporaryDirectory() as name:
        tools = Tools(Path(name), asked.max_python)
        sound: dict[str, Draft] = {}
        for family in (GPT2, LLAMA, MIXTRAL):
            folder = tiny(family, Path(name) / family.name)
            sound[family.name] = read_draft(folder, family)
            for outcome in (tools.transformers(folder, family), tools.max(folder, family)):
                assert outcome is None or outcome.exit_code == 0, outcome.text
        for fault in FAULTS:
            family = SHOWN_ON.get(fault.key, GPT2)
            cases.append((fault, family, case(tools, fault, sound[family.name])))
            print(f"{fault.key}: {', '.join(o.verdict() if o else NOT_RUN for o in cases[-1][2])}", flush=True)
    asked.out.write_text(page(cases, max_version), "utf-8")


if __name__ == "__main__":
    main()
