"""Removes barriers, weakens waits and relaxes orders in the kernels of bundles, and reports what finds each fault.

`python -m tests.kernels.mutations [word …]` prints every planted fault and what found it, for the tasks and
architectures whose names contain the words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bringup.compile.gpu.trial.launches import Seen
from tests.kernels.shipped import pairs, shipped
from tests.ptx.mutations import Mutant, mutants


@dataclass(frozen=True)
class Planted:
    """A fault in a kernel of a task, and the first thing that found it: a finding, a wrong result, or nothing."""

    task: str
    capability: str
    mutant: Mutant
    found: str

    def __str__(self) -> str:
        mutant = self.mutant
        what = self.found.partition("\n")[0][:80] or "NOT FOUND"
        return f"{self.task} {self.capability} {mutant.kind} line {mutant.line}: {mutant.change[:60]}: {what}"


def planted(task: str, capability: str, step: int = 1) -> Iterator[Planted]:
    """Every fault in the kernels of a task: by all checks of `bringup kernels test`, and by the results.

    With a step of n, one of n in each kernel.
    """
    built = shipped(task, capability)
    seen, sound = built.run()
    assert seen.findings == []
    for digest, text in built.texts.items():
        if built.task.kernel not in ("", built.compiled[digest].name):
            continue
        for mutant in list(mutants(text))[::step]:
            texts = {**built.texts, digest: mutant.text}
            what = _shown(*built.run_once(texts), sound) or _shown(*built.run(texts), sound)
            yield Planted(task, capability, mutant, what)


def _shown(seen: Seen, found: Mapping[str, np.ndarray], sound: Mapping[str, np.ndarray]) -> str:
    """The first finding, or a wrong result; empty without either."""
    wrong = [name for name, array in found.items() if not np.array_equal(array, sound[name])]
    return seen.findings[0] if seen.findings else f"wrong `{wrong[0]}`" if wrong else ""


def main() -> None:
    total = hits = 0
    for task, capability in pairs():
        if all(word in f"{task} {capability}" for word in sys.argv[1:]):
            for each in planted(task, capability):
                total, hits = total + 1, hits + bool(each.found)
                print(each, flush=True)
    print(f"{hits} of {total} found")


if __name__ == "__main__":
    main()
