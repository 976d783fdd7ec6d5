"""Random combinations of faults: one finding for each, and none is hidden without a word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bringup.diagnostics import Diagnostic
from tests.check.draw import Expected, matched
from tests.check.mutations.answer import ask
from tests.check.random_faults import draw_faults

COUNT = 500
SAMPLE = 40
SHARE = 0.95  # of the runs that have one finding for each fault


@dataclass(frozen=True)
class Run:
    seed: int
    family: str
    expected: list[Expected]
    findings: list[Diagnostic]
    hidden: list[Expected]

    @property
    def exact(self) -> bool:
        return not self.hidden and len(self.findings) == len(self.expected)

    def __str__(self) -> str:
        kinds = ", ".join(f"{fault.kind} ({fault.names})" for fault in self.expected)
        found = "; ".join(f"{finding.code} {finding.message[:150]}" for finding in self.findings)
        hidden = ", ".join(fault.kind for fault in self.hidden) or "none"
        return f"seed {self.seed}, {self.family}: {kinds}\n  hidden: {hidden}\n  found: {found}"


def runs(seeds: range) -> Iterator[Run]:
    for seed in seeds:
        draw = draw_faults(seed)
        with TemporaryDirectory() as folder:
            findings = ask(draw.trial.write(Path(folder, "model")), "check").findings
        yield Run(seed, draw.family, draw.expected, findings, matched(draw.expected, findings))


def summary(done: list[Run]) -> str:
    faults, hidden = sum(len(run.expected) for run in done), sum(len(run.hidden) for run in done)
    exact = sum(run.exact for run in done)
    share = f"{exact} with one finding for each ({exact / len(done):.1%})"
    return f"{len(done)} runs with {faults} faults: {share}, {hidden} faults hidden"


@pytest.mark.parametrize(
    "seeds", [range(SAMPLE), pytest.param(range(COUNT), marks=pytest.mark.slow)], ids=["sample", "all"]
)
def test_one_finding_for_each_fault(seeds: range) -> None:
    done = list(runs(seeds))
    print(summary(done))
    wrong = [run for run in done if not run.exact]
    assert len(wrong) <= (1 - SHARE) * len(done), summary(done) + "\n" + "\n".join(map(str, wrong))
    silent = [run for run in wrong if any(not any(map(fault.fits, run.findings)) for fault in run.hidden)]
    assert not silent, "\n".join(map(str, silent))  # two that are alike may be one finding, which names both
