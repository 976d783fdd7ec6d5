"""Plants faults in PTX, one at a time, and reports what finds each: wrong values, faults, races, order.

`python -m tests.ptx.mutations [case ...]` prints every planted fault and what found it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bringup.compile import ptx
from tests.ptx.cases import CASES, compiled
from tests.ptx.checks import error

MAX_STEPS = 20_000  # a mutant that hangs is stopped soon


@dataclass(frozen=True)
class Mutant:
    """PTX with one change. `kind`: barrier, wait or order; `line` counts from 1."""

    kind: str
    line: int
    change: str
    text: str


def mutants(text: str) -> Iterator[Mutant]:
    """Each barrier removed, each wait for asynchronous work one group too shallow, each order of an atomic relaxed.

    A wait for a barrier object (`mbarrier.try_wait`) is replaced by a true predicate.
    """
    lines = text.split("\n")
    for index, line in enumerate(lines):
        for kind, other in _changes(line):
            changed = [*lines[:index], other, *lines[index + 1 :]]
            yield Mutant(kind, index + 1, f"{line.strip()} -> {other.strip() or 'nothing'}", "\n".join(changed))


def _changes(line: str) -> Iterator[tuple[str, str]]:
    if re.match(r"\s*(bar|barrier)\.sync\b", line):
        yield "barrier", ""
    if found := re.search(r"((?:cp\.async|wgmma)\.wait_group(?:\.sync\.aligned)?\s+)(\d+)", line):
        yield "wait", line.replace(found[0], f"{found[1]}{int(found[2]) + 1}")
    if re.match(r"\s*cp\.async\.bulk\.wait_group", line):
        yield "wait", ""
    if found := re.match(r"\s*mbarrier\.try_wait[\w.:]*\s+(\w+),", line):
        yield "wait", f"setp.ne.u32 {found[1]}, 1, 0;"
    if found := re.search(r"\b(?:atom|red|ld|st)\.[\w.:]*?(acquire|release|acq_rel)\b", line):
        yield "order", line.replace(f".{found[1]}", ".relaxed", 1)


def findings(name: str, target: int, text: str) -> set[str]:
    """What a run of the case with other PTX shows, at both moments of asynchronous copies."""
    found: set[str] = set()
    program = ptx.Program(text)
    found |= {early.partition(":")[0] for early in program.early_reads}
    for copies in ("latest", "earliest"):
        watched: list[tuple[ptx.Races, ptx.Order]] = []

        def start(*arguments, copies=copies, watched=watched):
            watched.append((ptx.Races(), ptx.Order()))
            few = (
                {"lanes": 256} if copies == "earliest" else {}
            )  # blocks start one after the other: loops that spin turn
            how = {"copies": copies, "watch": watched[-1], "max_steps": MAX_STEPS, **few}
            return compiled(name, target).start(program, *arguments, **how)

        try:
            for _, result, reference, tolerance in CASES[name].check(start):
                if error(result, reference) > tolerance:
                    found.add("wrong value")
        except ptx.Fault as fault:
            found.add(f"fault: {str(fault).partition(': ')[2].partition(chr(10))[0][:40]}")
        for races, order in watched:
            found |= {f"race: {each.kind}" for each in races.result() if not each.harmless}
            found |= {f"order: {each.kind}" for each in order.result()}
    return found


def survey(pairs: list[tuple[str, int]]) -> Iterator[tuple[str, int, Mutant, set[str]]]:
    """Every mutant of some cases with what found it."""
    for name, target in pairs:
        for mutant in mutants(compiled(name, target).text):
            yield name, target, mutant, findings(name, target, mutant.text)


# One pair for each way in which kernels synchronise; the other cases repeat these.
PAIRS = [
    ("rms_norm", 80),
    ("gemv", 80),
    ("softmax_argmax", 80),
    ("decode", 80),
    ("grid_barrier", 80),
    ("gemm_bf16", 80),
    ("flash", 80),
    ("gemm_bf16", 90),
]
# Less is found here: Triton puts several barriers in a row around barrier objects and tensor maps, so that one of them
# can go, and a register that is read before its wgmma was waited for has its value here.
HARDER = [("flash", 90), ("gemm_tma", 90), ("gemm_specialized", 90)]


def main() -> None:
    chosen = [(name, target) for name, target in PAIRS + HARDER if not sys.argv[1:] or name in sys.argv[1:]]
    total, hits = 0, 0
    for name, target, mutant, found in survey(chosen):
        total, hits = total + 1, hits + bool(found)
        what = "; ".join(sorted(found)) or "NOT FOUND"
        print(f"{name} sm_{target} {mutant.kind} line {mutant.line}: {mutant.change[:60]}: {what}", flush=True)
    print(f"{hits} of {total} found")


if __name__ == "__main__":
    main()
