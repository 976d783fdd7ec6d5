"""Finds certain repairs of a check's findings."""

from __future__ import annotations

from dataclasses import replace

from bringup.compile.fix.propose import TYPO, Proposal, proposals
from bringup.compile.fix.trial import Bench, Facts, facts, kind
from bringup.compile.job import Job
from bringup.diagnostics import Diagnostic, Fix, Report

MOST_TENSORS = 20_000  # every proof is another check: for more tensors they would take too long


def add_fixes(job: Job, report: Report) -> None:
    """Adds to a report's findings the edits that repair them.

    An edit is valid if the check, repeated with it, has fewer findings and no new ones. If several other names are
    valid, none is certain, unless one has an edit distance of 1 and the others more. If the same axes can be edited in
    several places, the place that repairs most is chosen.
    """
    bench = Bench.of(job) if len(job.plan.headers) <= MOST_TENSORS else None
    if bench is None:
        return
    search = _Search(bench, report.findings)
    while any([search.one(place) for place in range(len(report.findings))]):
        pass  # each repair leaves fewer possibilities for the rest
    report.findings = [replace(f, fixes=search.found.get(place, ())) for place, f in enumerate(report.findings)]


class _Search:
    """The edits found so far, by the index of their findings, and the remaining problems."""

    def __init__(self, bench: Bench, findings: list[Diagnostic]) -> None:
        self.bench = bench
        self.findings = findings
        self.job = bench.job
        self.left = self.all = facts(bench.job)
        self.fixes: tuple[Fix, ...] = ()
        self.found: dict[int, tuple[Fix, ...]] = {}

    def one(self, place: int) -> bool:
        """Searches the edits of one finding; returns whether there are new ones."""
        if place in self.found:
            return False
        before = self.job, self.left, self.fixes
        possible = proposals(self.job, self.bench.file, self.findings[place])
        if not possible or not all(map(self._apply, possible)) or self._remain(place):
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

    def _apply(self, possible: list[Proposal]) -> bool:
        """Applies the one valid proposal; False if none is valid or several could be intended."""
        if any(set(proposal.fixes) <= set(self.fixes) for proposal in possible):
            return True
        done = [(proposal.slips, *self._done(proposal)) for proposal in possible]
        holding = sorted((d for d in done if d[2] < self.left), key=lambda d: (d[0], len(d[2])))
        if not holding or (len(holding) > 1 and 0 < holding[0][0] >= min(holding[1][0], TYPO + 1)):
            return False
        _, self.job, self.left, self.fixes = holding[0]
        return True

    def _done(self, proposal: Proposal) -> tuple[Job, Facts, tuple[Fix, ...]]:
        """The job, the remaining problems, and the edits, with one more proposal."""
        fixes = tuple(dict.fromkeys([*self.fixes, *proposal.fixes]))
        job = self.bench.with_edits(fixes)
        return (job, facts(job), fixes) if job else (self.job, self.left, self.fixes)
