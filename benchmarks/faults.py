"""Writes docs/faults.md: what bringup, transformers and MAX report for the same faulty checkpoints.

    python -m benchmarks.faults [--table stored] [--max-python PATH] [--transformers-python PATH] [--saved FOLDER]

The folders are small random models saved by transformers, each with one mutation of tests/check/mutations. The table
`stored` is that of quantised checkpoints, docs/faults-quantised.md. MAX runs in a separate environment
(`pip install max==26.7.0 safetensors`); without one its column is "not run". transformers needs other packages to load
AWQ, GPTQ and bitsandbytes (`pip install gptqmodel optimum bitsandbytes`).
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.faults_page import Outcome, Row, Subject, page
from benchmarks.faults_saved import Saved
from tests.check.mutations.bases import BASES, base
from tests.check.mutations.mutation import Mutation, Trial
from tests.check.mutations.stored.table import STORED_MUTATIONS
from tests.check.mutations.table import MUTATIONS

ROOT = Path(__file__).resolve().parent.parent
MAX_SCRIPT, MAX_GRAPHS = (ROOT / "benchmarks" / name for name in ("faults_max.py", "faults_max_graphs.py"))
TRANSFORMERS = ROOT / "benchmarks/faults_transformers.py"
SUBJECTS = {
    "all": Subject(
        "mistakes, and the tools that find them",
        (
            "Each tool loads the same faulty folder: bringup, transformers with `from_pretrained` and one forward",
            "pass, and, for GPT-2 and Llama, MAX with a model written in its Python API",
            "(benchmarks/faults_max_graphs.py, whose logits agree with transformers' for the valid folders). If the",
            "mistake is in a rule, the peers load the folder that a conversion script with the same mistake writes.",
            "If it is in the graph, MAX has it in its graph. The models are small (2 or 3 layers) and random; names,",
            "layouts and configs are those that transformers writes.",
        ),
        "",
        "tests/check/mutations",
    ),
    "stored": Subject(
        "mistakes in quantised checkpoints, and the tools that find them",
        (
            "bringup and transformers load the same faulty folder; transformers with `from_pretrained` and one",
            "forward pass. The models are small (2 layers) and random. Each matrix is stored as the format's library",
            "stores it (tests/quantised), with the keys that it writes to config.json. Only bringup is run with",
            "tensor parallelism. No MAX graph here reads quantised matrices.",
        ),
        " --table stored",
        "tests/check/mutations/stored",
    ),
}
PAGES = {"all": ROOT / "docs/faults.md", "stored": ROOT / "docs/faults-quantised.md"}
TABLES = {"all": MUTATIONS, "stored": STORED_MUTATIONS}
PACKAGES = ("peft", "compressed-tensors", "gptqmodel", "optimum", "bitsandbytes")  # with which transformers loads
AT_ONCE = 10  # folders per process: a process with 8 or 25 models on MAX hung, for an unknown reason
PATIENCE = 1800  # seconds for all of them
QUIET = {"NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "default", "COLUMNS": "110"}


def run(python: str, script: Path, cases: Mapping[str, tuple[Path, Path | str]], saved: Saved) -> dict[str, Outcome]:
    """The outcome of a peer for each case: key → (folder, MORE), where MORE is the script's second argument.

    A process that hangs is ended, and another continues with the remaining folders. Raises TimeoutError if it
    hangs at the same folder twice.
    """
    texts = {key: more.read_text("utf-8") if isinstance(more, Path) else more for key, (_, more) in cases.items()}
    found = {key: saved.find(folder, texts[key]) for key, (folder, _) in cases.items()}
    waiting, once = [key for key in cases if found[key] is None], ""
    while waiting:
        some = waiting[:AT_ONCE]
        for key in some:
            (cases[key][0] / "exit_code").unlink(missing_ok=True)
        words = [python, str(script), *(f"{folder},{more}" for folder, more in map(cases.__getitem__, some))]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(words, cwd=ROOT, env=os.environ | QUIET, check=True, timeout=PATIENCE)
        ended = [key for key in some if (cases[key][0] / "exit_code").is_file()]
        for key in ended:
            found[key] = _outcome(cases[key][0])
            saved.save(cases[key][0], texts[key], found[key])
        waiting = [key for key in waiting if key not in ended]
        if waiting and waiting[0] == once:
            raise TimeoutError(f"{script.name} hangs at {once}")
        once = waiting[0] if len(ended) < len(some) else ""
        print(f"{script.name}: {len(waiting)} folders left", flush=True)
    return found


def saved_by(python: str, script: Path, place: Path) -> Saved:
    """The saved outcomes of the installed version of a peer, in the folder `place`."""
    return Saved(place, f"{_version_of(python, script)}\0{script.read_text('utf-8')}")


def _version_of(python: str, script: Path) -> str:
    """The version of the tool that a script calls, `faults_TOOL.py`."""
    return _installed(python, script.stem.removeprefix("faults_"))


def _installed(python: str, package: str) -> str:
    words = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.check_output([python, "-c", words], text=True).strip()


def _packages(python: str) -> str:
    """Those of `PACKAGES` that an interpreter has, with their versions."""
    words = "from importlib.metadata import distributions; print(*(f'{d.name}={d.version}' for d in distributions()))"
    found = subprocess.check_output([python, "-c", words], text=True).split()
    versions = dict(each.split("=") for each in found)
    return ", ".join(f"{package} {versions[package]}" for package in PACKAGES if package in versions)


def _outcome(folder: Path) -> Outcome:
    """The outcome that a run wrote to a folder; the folder's path is reduced to its name."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", (folder / "said.txt").read_text("utf-8"))
    text = re.sub(r"^(WARNING:[\w.]+:)?compiled \w+ on the fly .*\n?", "", text, flags=re.MULTILINE).replace(
        f"{folder.parent}/", ""
    )
    text = re.sub(r"\S*/site-packages/", "", text)
    text = last_error("\n".join(line.rstrip() for line in text.strip().splitlines()))
    code, file = int((folder / "exit_code").read_text("utf-8")), folder / "logits.npy"
    outcome = Outcome(code, text, np.load(file) if not code else None)
    file.unlink(missing_ok=True)
    return outcome


def last_error(text: str) -> str:
    """The text with its traceback reduced to the last paragraph."""
    before, trace, rest = text.partition("Traceback (most recent call last):")
    if not trace:
        return text
    lines = rest.rpartition("Traceback (most recent call last):")[2].splitlines()
    start = max(n for n, line in enumerate(lines) if line.startswith("  File "))
    error = next(n for n, line in enumerate(lines) if n > start and line and not line.startswith(" "))
    return (before + "\n".join(lines[error:])).strip()


def graph_with(mutation: Mutation, folder: Path) -> Path:
    """A copy of the MAX graphs with the mutation's mistake, if it has one in graphs."""
    source = MAX_GRAPHS.read_text("utf-8")
    for old, new in mutation.in_max:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    path = folder.with_name(f"{folder.name}-max.py")
    path.write_text(source, "utf-8")
    return path


def outcomes(
    scratch: Path, mutations: Sequence[Mutation], python: str, max_python: str | None, place: Path
) -> tuple[list[Row], datetime.date]:
    """Writes every folder and runs each peer on all of them. MAX has graphs for GPT-2 and Llama only.

    Returns the rows, and the date of the oldest outcome of a peer.
    """
    theirs: dict[str, tuple[Path, Path | str]] = {}
    ours: dict[str, tuple[Path, Path | str]] = {}
    sound = dict.fromkeys(mutation.base for mutation in mutations)
    for of in sound:
        theirs[of] = Trial(base(of)).write(scratch / of).folder, ""
        ours[of] = theirs[of][0], MAX_GRAPHS
    for mutation in mutations:
        spoilt, given = Trial(base(mutation.base)), Trial(base(mutation.base))
        mutation.spoil(spoilt)
        (mutation.convert or mutation.spoil)(given)
        folder = given.write(scratch / mutation.key).folder
        if not spoilt.graph:
            theirs[mutation.key] = folder, ""
        if not spoilt.graph or mutation.in_max:
            ours[mutation.key] = folder, graph_with(mutation, folder)
    bases = {of: of for of in sound} | {mutation.key: mutation.base for mutation in mutations}
    served = {key: case for key, case in ours.items() if bases[key] in ("gpt2", "llama")}
    saved = [saved_by(python, TRANSFORMERS, place)]
    columns = [run(python, TRANSFORMERS, theirs, saved[0])]
    if max_python:
        saved.append(saved_by(max_python, MAX_SCRIPT, place))
    columns.append(run(max_python, MAX_SCRIPT, served, saved[1]) if max_python else {})
    for column in columns:
        for key, outcome in column.items():
            assert key not in BASES or (outcome.exit_code, outcome.text) == (0, ""), outcome
            if key not in sound:
                outcome.compare(column[bases[key]])
    rows = [Row(mutation, *(column.get(mutation.key) for column in columns)) for mutation in mutations]
    return rows, min(each.oldest for each in saved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=sorted(TABLES), default="all")
    parser.add_argument("--transformers-python", metavar="PATH", default=sys.executable, help="one with transformers")
    parser.add_argument("--max-python", metavar="PATH", help="an interpreter that has max and safetensors")
    parser.add_argument("--only", nargs="*", metavar="KEY", help="print these rows, write nothing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--saved", type=Path, metavar="FOLDER", help="save the peers' outcomes there, and reuse them")
    options = parser.parse_args()
    python, subject = options.transformers_python, SUBJECTS[options.table]
    tools = f"transformers {_version_of(python, TRANSFORMERS)}", "MAX"
    if options.max_python:
        tools = tools[0], f"MAX {_version_of(options.max_python, MAX_SCRIPT)}"
        subject = replace(subject, options=f"{subject.options} --max-python PATH")
    if others := _packages(python):
        subject = replace(subject, folders=(*subject.folders, f"transformers loads with {others}."))
    if python != sys.executable:
        line = f"{subject.options} --transformers-python PATH"
        subject = replace(subject, options=line, torch=_installed(python, "torch"))
    if options.saved:
        subject = replace(subject, options=f"{subject.options} --saved FOLDER")
    mutations = [each for each in TABLES[options.table] if options.only is None or each.key in options.only]
    with tempfile.TemporaryDirectory() as name:
        place = options.saved or Path(name, "saved")
        rows, oldest = outcomes(Path(name), mutations, python, options.max_python, place)
    print(*(row.line() for row in rows), sep="\n")
    if options.only is None:
        (options.out or PAGES[options.table]).write_text(page(rows, subject, tools, oldest), "utf-8")


if __name__ == "__main__":
    main()
