"""Finds certain repairs of a check's findings."""

from __future__ import annotations

from dataclasses import replace

from bringup.compile.fix.propose import TYPO, Proposal, proposals
from bringup.compile.fix.trial import Bench, Facts, facts, kind
from bringup.compile.job import Job
from bringup.diagnostics import Diagnostic, Fix, Report

MOST_TENSORS = 20_000  # every proof is a check more: of more tensors they would take longer than a look at the file


def add_fixes(job: Job, report: Report) -> None:
    """Puts the edits that repair them beside a report's findings.

    An edit holds when the check, done again with it, finds less and nothing new. Of several other names that hold none
    is certain, unless one is a slip of the hand away and the rest are further. Of several places for the same axes the
    one counts that repairs most.
    """
    bench = Bench.of(job) if len(job.plan.headers) <= MOST_TENSORS else None
    if bench is None:
        return
    search = _Search(bench, report.findings)
    while any([search.one(place) for place in range(len(report.findings))]):
        pass  # what is repaired leaves fewer possibilities for the rest
    report.findings = [replace(f, fixes=search.found.get(place, ())) for place, f in enumerate(report.findings)]


class _Search:
    """The edits found so far, by the places of their findings, and what they leave to be repaired."""

    def __init__(self, bench: Bench, findings: list[Diagnostic]) -> None:
        self.bench = bench
        self.findings = findings
        self.job = bench.job
        self.left = self.all = facts(bench.job)
        self.fixes: tuple[Fix, ...] = ()
        self.found: dict[int, tuple[Fix, ...]] = {}

    def one(self, place: int) -> bool:
        """Looks for the edits of one finding; whether there are new ones."""
        if place in self.found:
            return False
        before = self.job, self.left, self.fixes
        possible = proposals(self.job, self.bench.file, self.findings[place])
        if not possible or not all(map(self._take, possible)) or self._remain(place):
            self.job, self.left, self.fixes = before
            return False
        new = tuple(fix for fix in self.fixes if fix not in before[2])
        for other in range(len(self.findings)):  # one edit may repair several
            if other not in self.found and self._facts(other) and not self._remain(other):
                self.found[other] = new
        return True

    def _facts(self, place: int) -> Facts:
        finding = self.findings[place]
        return frozenset(fact for fact in self.all if fact[0] == kind(finding.code) and fact[2] in finding.sources)

    def _remain(self, place: int) -> Facts:
        return self._facts(place) & self.left

    def _take(self, possible: list[Proposal]) -> bool:
        """Takes the one proposal that holds; False when none does or several could be meant."""
        if any(set(proposal.fixes) <= set(self.fixes) for proposal in possible):
            return True
        done = [(proposal.slips, *self._done(proposal)) for proposal in possible]
        holding = sorted((d for d in done if d[2] < self.left), key=lambda d: (d[0], len(d[2])))
        if not holding or (len(holding) > 1 and 0 < holding[0][0] >= min(holding[1][0], TYPO + 1)):
            return False
        _, self.job, self.left, self.fixes = holding[0]
        return True

    def _done(self, proposal: Proposal) -> tuple[Job, Facts, tuple[Fix, ...]]:
        """The job, what is left to repair, and the edits, with one proposal more."""
        fixes = tuple(dict.fromkeys([*self.fixes, *proposal.fixes]))
        job = self.bench.with_edits(fixes)
        return (job, facts(job), fixes) if job else (self.job, self.left, self.fixes)
