"""The loop of every fuzz script: runs mutated inputs, expects a result or a BringupError, and measures time and memory.

A script creates a `Target` and calls `main`:

    python -m benchmarks.fuzz.safetensors_header --inputs 200000 --seed 0

It prints the figures and writes them to benchmarks/results/fuzz-NAME.md. It exits with 1 if an input raised another
exception than BringupError, if it exceeded the limits of time or memory, or if an oracle disagreed in a way that the
script does not explain. An input with a new result becomes a seed of later ones; equal seeds give equal runs. A script
must not have the name of a package that it imports, because its folder is first in Python's search path.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import platform
import re
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.fuzz.mutate import Mutation, mutated
from bringup.diagnostics import BringupError

RESULTS = Path(__file__).resolve().parents[1] / "results"
SECONDS, MEGABYTES, HUNG = 1.0, 200, 60  # processor time and memory of one input; wall time until it is given up
MAX_CORPUS, MAX_SEED = 2000, 20_000  # seeds, and bytes of one
ACCEPTED = "accepted"


class Hung(BaseException):
    """An input that does not come back; no parser may catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A parser and what it is fed.

    `parse` gives anything, or raises BringupError. `oracle` gives ACCEPTED or a word for why not; it sees a `share` of
    the inputs. Where only one of the two accepts, what the other says has to hold a regex of `explained`, which gives
    the reason why that may stand.
    """

    name: str
    about: str
    seeds: Sequence[bytes]
    parse: Callable[[bytes], object]
    mutate: Mutation = mutated
    oracle: Callable[[bytes], str] | None = None
    share: float = 0.25
    explained: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Figures:
    """What came of a run."""

    answers: Counter[str] = field(default_factory=Counter[str])
    compared: int = 0  # with the oracle
    departed: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])  # who accepts, and why
    faults: Counter[str] = field(default_factory=Counter[str])
    corpus: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    megabytes: float = 0.0


class Run:
    """One run: the corpus, the figures, and a folder for the inputs that showed a fault."""

    def __init__(self, target: Target, seed: int, keep: Path) -> None:
        self.target, self.keep = target, keep
        self.random = Random(seed)
        self.corpus = list(target.seeds)
        self.seen: set[str] = set()
        self.figures = Figures()
        for data in target.seeds:  # what is loaded on first use is no input's memory
            self.answer(data)
        gc.collect()
        gc.freeze()  # what is loaded by now stays, and need not be looked through again and again
        self.start_memory = self.peak = _peak()

    def go(self, inputs: int) -> Figures:
        """Feeds that many inputs."""
        signal.signal(signal.SIGALRM, _hung)
        figures = self.figures = Figures()
        begin = time.perf_counter()
        for count in range(inputs):
            valid = self.random.random() < 0.5
            data = self.target.mutate(self.random, self.target.seeds if valid else self.corpus)
            self.one(data)
            if count % 1000 == 999:
                gc.collect()
        figures.seconds = time.perf_counter() - begin
        figures.corpus = len(self.corpus)
        return figures

    def one(self, data: bytes) -> None:
        """Feeds one input, and watches it."""
        figures, before = self.figures, self.peak
        signal.setitimer(signal.ITIMER_REAL, HUNG)
        start = time.process_time()
        answer, message = self.answer(data)
        took = time.process_time() - start
        if took > SECONDS:  # was it the input, or what this process collects now and then?
            start = time.process_time()
            self.answer(data)
            took = min(took, time.process_time() - start)
        signal.setitimer(signal.ITIMER_REAL, 0)
        after = self.peak = _peak()
        figures.answers[answer] += 1
        figures.slowest = max(figures.slowest, took)
        figures.megabytes = max(figures.megabytes, after - self.start_memory)
        if took > SECONDS:
            self.fault(f"took over {SECONDS:g} s", data)
        if after > before and after - self.start_memory > MEGABYTES:
            self.fault(f"took over {MEGABYTES} MB", data)
        if message not in self.seen:
            self.seen.add(message)
            if len(self.corpus) < MAX_CORPUS and len(data) <= MAX_SEED:
                self.corpus.append(data)
        if self.target.oracle and self.random.random() < self.target.share:
            figures.compared += 1
            self.compare(message, self.target.oracle(data), data)

    def compare(self, ours: str, its: str, data: bytes) -> None:
        """Counts where only one of the two accepts; without a reason it is a fault."""
        if (ours == ACCEPTED) != (its == ACCEPTED):
            who, said = ("the oracle", ours) if its == ACCEPTED else ("bringup", its)
            reason = next((why for pattern, why in self.target.explained.items() if re.search(pattern, said)), "")
            self.figures.departed[who, reason or f"not explained: {said}"] += 1
            if not reason:
                self.fault(f"only {who} accepts: {said}", data)

    def answer(self, data: bytes) -> tuple[str, str]:
        """ACCEPTED, a code, or the name of what must not come; and the sentence without what varies."""
        try:
            self.target.parse(data)
        except BringupError as error:
            code = error.findings[0].code
            return code, f"{code} {re.sub(r'`[^`]*`|[0-9]+', '', error.findings[0].message)[:200]}"
        except (Exception, Hung) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            self.fault(said, data)
            return type(error).__name__, said
        return ACCEPTED, ACCEPTED

    def fault(self, said: str, data: bytes) -> None:
        """Counts a fault; keeps the first three inputs of each."""
        self.figures.faults[said] += 1
        if (count := self.figures.faults[said]) <= 3:
            name = re.sub(r"\W+", "-", said)
            self.keep.mkdir(parents=True, exist_ok=True)
            (self.keep / f"{name}.{count}").write_bytes(data)


def _hung(*_: object) -> None:
    raise Hung


def _peak() -> float:
    """The most memory this program ever had resident, in MB; `ru_maxrss` would count what was there before exec."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def page(target: Target, figures: Figures, seed: int) -> str:
    """The figures as Markdown."""
    count = figures.answers.total()
    refused = sum(number for answer, number in figures.answers.items() if re.fullmatch(r"BU\d{3}", answer))
    lines = [
        f"# Fuzzing: {target.name}",
        "",
        target.about,
        "",
        f"`python -m benchmarks.fuzz.{target.name.replace('-', '_')} --inputs {count} --seed {seed}`, "
        f"{datetime.date.today()}, Python {platform.python_version()}.",
        "",
        "| | |",
        "|---|---|",
        f"| inputs | {count:,} from {len(target.seeds)} seeds, which grew to {figures.corpus:,} |",
        f"| accepted | {figures.answers[ACCEPTED]:,} |",
        f"| refused with a code | {refused:,} |",
        f"| anything else | {count - refused - figures.answers[ACCEPTED]:,} |",
        f"| slowest input | {figures.slowest * 1e3:.0f} ms of processor time |",
        f"| most memory above the start | {figures.megabytes:.0f} MB |",
        f"| in all | {figures.seconds:.0f} s, {count / figures.seconds:,.0f} inputs a second |",
        "",
        "| answer | inputs |",
        "|---|---|",
        *(f"| {answer} | {number:,} |" for answer, number in sorted(figures.answers.items())),
    ]
    if figures.faults:
        lines += ["", "| fault | inputs |", "|---|---|", *(f"| {f} | {n:,} |" for f, n in figures.faults.items())]
    if figures.compared:
        agreed = figures.compared - figures.departed.total()
        lines += ["", f"The oracle saw {figures.compared:,} of the inputs; both gave the same verdict on {agreed:,}."]
    if figures.departed:
        lines += ["", "| accepted only by | inputs | |", "|---|---|---|"]
        lines += [f"| {who} | {number:,} | {reason} |" for (who, reason), number in sorted(figures.departed.items())]
    return "\n".join(lines) + "\n"


def main(target: Target) -> int:
    """The command line of a fuzz script. Gives its exit code."""
    parser = argparse.ArgumentParser(description=target.about)
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / f"fuzz-{target.name}.md", help="where to; /dev/null")
    parser.add_argument("--keep", type=Path, help="folder for inputs that show a fault")
    options = parser.parse_args()
    keep = options.keep or Path(tempfile.gettempdir()) / f"fuzz-{target.name}"
    figures = Run(target, options.seed, keep).go(options.inputs)
    text = page(target, figures, options.seed)
    print(text, end="")
    options.out.write_text(text, "utf-8")
    if figures.faults:
        print(f"inputs kept in {keep}")
    return 1 if figures.faults else 0
