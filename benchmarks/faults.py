"""Writes docs/faults.md: what bringup, transformers and MAX say of the same spoilt checkpoints.

    python benchmarks/faults.py [--table stored] [--max-python PATH] [--transformers-python PATH] [--saved FOLDER]

The folders are small random models that transformers saves; the mutations of tests/check/mutations spoil them. The
table `stored` is of quantised checkpoints, docs/faults-quantised.md. MAX runs in an environment of its own
(`pip install max==26.7.0 safetensors`); without one its column says "not run". transformers loads AWQ, GPTQ and
bitsandbytes with packages of theirs (`pip install gptqmodel optimum bitsandbytes`).
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from faults_page import Outcome, Row, Subject, page  # noqa: E402
from faults_saved import Saved  # noqa: E402

from tests.check.mutations.bases import BASES, base  # noqa: E402
from tests.check.mutations.mutation import Mutation, Trial  # noqa: E402
from tests.check.mutations.stored.table import STORED_MUTATIONS  # noqa: E402
from tests.check.mutations.table import MUTATIONS  # noqa: E402

MAX_SCRIPT, MAX_GRAPHS = (ROOT / "benchmarks" / name for name in ("faults_max.py", "faults_max_graphs.py"))
TRANSFORMERS = ROOT / "benchmarks/faults_transformers.py"
SUBJECTS = {
    "all": Subject(
        "mistakes, and who finds them",
        (
            "The same spoilt folder is given to bringup, to transformers' `from_pretrained` with one forward pass,",
            "and, for GPT-2 and Llama, to MAX: the model written on its Python API (benchmarks/faults_max_graphs.py,",
            "whose logits agree with transformers' on the sound folders) and fed with the folder's weights. A mistake",
            "in a rule is given to them as the folder that a conversion script with the same mistake writes; one in",
            "the graph, to MAX in its graph. Small random models (of 2 or 3 layers) stand in for the published ones:",
            "names, layouts and configs are those that transformers writes.",
        ),
        "",
        "tests/check/mutations",
    ),
    "stored": Subject(
        "mistakes in quantised checkpoints, and who finds them",
        (
            "The same spoilt folder is given to bringup and to transformers' `from_pretrained` with one forward pass.",
            "Small random models (of 2 layers) stand in for the published ones: each matrix is stored as the format's",
            "library stores it (tests/quantised), with the words that it leaves in config.json. Tensor parallelism is",
            "asked of bringup alone. MAX has no graph here that reads quantised matrices.",
        ),
        " --table stored",
        "tests/check/mutations/stored",
    ),
}
PAGES = {"all": ROOT / "docs/faults.md", "stored": ROOT / "docs/faults-quantised.md"}
TABLES = {"all": MUTATIONS, "stored": STORED_MUTATIONS}
PACKAGES = ("compressed-tensors", "gptqmodel", "optimum", "bitsandbytes")  # by which transformers loads
AT_ONCE = 10  # folders a process: one with some 8 or 25 models on MAX stood still; why was not found
PATIENCE = 1800  # seconds for them
QUIET = {"NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "default", "COLUMNS": "110"}


def run(python: str, script: Path, cases: Mapping[str, tuple[Path, Path | str]], place: Path) -> dict[str, Outcome]:
    """What a peer says of each case's folder; logits are compared with those of the base of the same name.

    A process that stands still is ended; the folders that it has not come to are given to another. Raises
    TimeoutError when it stands still at one twice.
    """
    saved = Saved(place, f"{_version_of(python, script)}\0{script.read_text('utf-8')}")
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
            raise TimeoutError(f"{script.name} stands still at {once}")
        once = waiting[0] if len(ended) < len(some) else ""
        print(f"{script.name}: {len(waiting)} folders left", flush=True)
    return found


def _version_of(python: str, script: Path) -> str:
    """The version of the tool that a script calls, `faults_TOOL.py`."""
    return _installed(python, script.stem.removeprefix("faults_"))


def _installed(python: str, package: str) -> str:
    words = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.check_output([python, "-c", words], text=True).strip()


def _outcome(folder: Path) -> Outcome:
    """What stands in a folder after a run; of the folder's own path, only its name is told."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", (folder / "said.txt").read_text("utf-8"))
    text = re.sub(r"^(WARNING:[\w.]+:)?compiled \w+ on the fly .*\n?", "", text, flags=re.MULTILINE).replace(
        f"{folder.parent}/", ""
    )
    text = last_error("\n".join(line.rstrip() for line in text.strip().splitlines()))
    code, file = int((folder / "exit_code").read_text("utf-8")), folder / "logits.npy"
    outcome = Outcome(code, text, np.load(file) if not code else None)
    file.unlink(missing_ok=True)
    return outcome


def last_error(text: str) -> str:
    """A traceback's last paragraph; what was printed before it stays."""
    before, trace, rest = text.partition("Traceback (most recent call last):")
    if not trace:
        return text
    lines = rest.rpartition("Traceback (most recent call last):")[2].splitlines()
    start = max(n for n, line in enumerate(lines) if line.startswith("  File "))
    error = next(n for n, line in enumerate(lines) if n > start and line and not line.startswith(" "))
    return (before + "\n".join(lines[error:])).strip()


def graph_with(mutation: Mutation, folder: Path) -> Path:
    """The MAX graphs with the mutation's mistake, where it has one there."""
    source = MAX_GRAPHS.read_text("utf-8")
    for old, new in mutation.in_max:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    path = folder.with_name(f"{folder.name}-max.py")
    path.write_text(source, "utf-8")
    return path


def outcomes(
    scratch: Path, mutations: Sequence[Mutation], python: str, max_python: str | None, place: Path
) -> list[Row]:
    """Writes every folder, and runs each peer once on all of them. MAX has graphs for GPT-2 and Llama only."""
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
    columns = [run(python, TRANSFORMERS, theirs, place)]
    columns.append(run(max_python, MAX_SCRIPT, served, place) if max_python else {})
    for column in columns:
        for key, outcome in column.items():
            assert key not in BASES or (outcome.exit_code, outcome.text) == (0, ""), outcome
            if key not in sound:
                outcome.compare(column[bases[key]])
    return [Row(mutation, *(column.get(mutation.key) for column in columns)) for mutation in mutations]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=sorted(TABLES), default="all")
    parser.add_argument("--transformers-python", metavar="PATH", default=sys.executable, help="one with transformers")
    parser.add_argument("--max-python", metavar="PATH", help="an interpreter that has max and safetensors")
    parser.add_argument("--only", nargs="*", metavar="KEY", help="print these rows, write nothing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--saved", type=Path, metavar="FOLDER", help="keep what peers say there, and go by it")
    options = parser.parse_args()
    python, subject = options.transformers_python, SUBJECTS[options.table]
    tools = f"transformers {_version_of(python, TRANSFORMERS)}", "MAX"
    if options.max_python:
        tools = tools[0], f"MAX {_version_of(options.max_python, MAX_SCRIPT)}"
        subject = replace(subject, options=f"{subject.options} --max-python PATH")
    if python != sys.executable:
        others = ", ".join(f"{package} {_installed(python, package)}" for package in PACKAGES)
        subject = replace(
            subject,
            options=f"{subject.options} --transformers-python PATH",
            folders=(*subject.folders, f"transformers loads with {others}."),
            torch=_installed(python, "torch"),
        )
    mutations = [each for each in TABLES[options.table] if options.only is None or each.key in options.only]
    with tempfile.TemporaryDirectory() as name:
        rows = outcomes(Path(name), mutations, python, options.max_python, options.saved or Path(name, "saved"))
    print(*(row.line() for row in rows), sep="\n")
    if options.only is None:
        (options.out or PAGES[options.table]).write_text(page(rows, subject, tools), "utf-8")


if __name__ == "__main__":
    main()
