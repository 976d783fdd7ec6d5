"""The reports of bringup for a case, phase by phase, called as users call it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.apply.reverse import reverse
from bringup.compile.check.ranks import divide
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import build, check
from bringup.diagnostics import BringupError, Diagnostic, Report, Severity
from bringup.progress import Silent
from tests.check.drafts import ROOT
from tests.check.mutations.bases import base, reference
from tests.check.mutations.mutation import Case, Mutation, Trial

ROW = re.compile(r"^\| \[(.+)\]\(#\S+\) \((\w+)\) \| (\d+) \| (.+?) \| ", re.MULTILINE)
COMMANDS = {
    "check": "check",
    "compile": "compile",
    "export": "reverse",
    "verify": "verify",
    "against": "verify --against",
}


@dataclass(frozen=True)
class Answer:
    """Where bringup spoke up, and all that it said there. `exit_code` is the command's."""

    phase: str
    findings: list[Diagnostic]
    exit_code: int


@dataclass
class Heard(Silent):
    """A progress that keeps the warnings."""

    findings: list[Diagnostic] = field(default_factory=list)

    def warn(self, finding: Diagnostic) -> None:
        self.findings.append(finding)


@cache
def answer_to(mutation: Mutation) -> Answer:
    """To a mutation alone."""
    with TemporaryDirectory() as scratch:
        trial = Trial(base(mutation.base))
        mutation.spoil(trial)
        return ask(trial.write(Path(scratch, mutation.key)), mutation.phase, mutation.base)


def ask(case: Case, last: str = "verify", of: str = "") -> Answer:
    """Checks; if that passes in silence, compiles; and so on up to the phase `last`.

    `of` is the base whose saved activations the phase `against` holds it to.
    """
    try:
        answer = _checked(case)
    except BringupError as error:
        return Answer("check", list(error.findings), error.exit_code)
    if answer.findings or last == "check":
        return answer
    with TemporaryDirectory() as scratch:
        return _compiled(case, last, of, Path(scratch))


def _opened(case: Case) -> Job:
    return open_job(case.model, str(case.folder), adapter=str(case.adapter) if case.adapter else None)


def _checked(case: Case) -> Answer:
    job = _opened(case)
    report = check(job)
    if case.options:
        _, ranks = case.options
        report.findings += divide(job.plan, int(ranks)).refusals
    return Answer("check", report.findings, _exit(report))


def _exit(report: Report) -> int:
    return 0 if report.ok else BringupError(*report.errors).exit_code


def _compiled(case: Case, last: str, of: str, scratch: Path) -> Answer:
    from bringup.compile.verify.command import verify

    job, heard = _opened(case), Heard()
    phase, bundle = "compile", scratch / "bundle"
    try:
        build(job, out=bundle, target="torch", max_seq_len=64, buckets=[64], all_logits=True, progress=heard)
        if heard.findings or last == "compile":
            return Answer("compile", heard.findings, 0)
        phase = last
        if last == "export":
            reverse(job.plan, materialise(job.plan, job.checkpoint))
            return Answer("export", [], 0)
        against = "transformers"
        if last == "against":
            against = str(scratch / "saved.safetensors")
            Path(against).write_bytes(_saved(of))
        with _quiet():
            parity = verify(str(bundle), against=against)
    except BringupError as error:
        return Answer(phase, list(error.findings), error.exit_code)
    return Answer(last, parity.findings, 0 if parity.ok else 1)


@cache
def _saved(name: str) -> bytes:
    """transformers' activations of a sound checkpoint, as `verify --save` keeps them."""
    from bringup.compile.verify.command import verify

    with TemporaryDirectory() as scratch, _quiet():
        folder, file = Path(scratch, "model"), Path(scratch, "saved.safetensors")
        case = Trial(reference(name)).write(folder)
        build(_opened(case), out=Path(scratch, "b"), target="torch", max_seq_len=64, buckets=[64], all_logits=True)
        verify(str(Path(scratch, "b")), save=file)
        return file.read_bytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers warns of what pytest would take for an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def names(finding: Diagnostic, wanted: str) -> bool:
    """Whether a finding is about this parameter, module, tensor, file or key of the config."""
    if f"`{wanted}`" in finding.message.partition(" of the config)")[0].rpartition("(")[2]:
        return True
    return finding.parameter == wanted or (not finding.parameter and f"{wanted}`" in finding.message)


@dataclass(frozen=True)
class Page:
    """A page of docs/ with the report for each mutation of a table, and the command that writes it."""

    name: str
    written_by: str

    @cached_property
    def text(self) -> str:
        return (ROOT / "docs" / self.name).read_text("utf-8")

    @cached_property
    def rows(self) -> dict[str, tuple[str, ...]]:
        """The base, the pain and the answer in the row of each mutation, by title."""
        return {row[0]: row[1:] for row in ROW.findall(self.text)}

    def assert_found_once(self, mutation: Mutation) -> None:
        """One finding in the expected phase, which names what was changed; and the page has it."""
        answer = answer_to(mutation)
        assert answer.phase == mutation.phase
        assert [finding.code for finding in answer.findings] == [mutation.code], answer.findings
        (finding,) = answer.findings
        assert names(finding, mutation.names), (finding.parameter, finding.message)
        assert (finding.severity is Severity.WARNING) == mutation.warns
        assert answer.exit_code == (0 if mutation.warns else 1)
        hint = f"write the page again: {self.written_by}"
        assert self.rows[mutation.title] == (mutation.base, str(mutation.pain), answer_text(mutation)), hint
        assert f"\n\nbringup:\n\n```text\n{printed(mutation)}\n```\n" in self.text, hint


def answer_text(mutation: Mutation) -> str:
    """The answer to a mutation, as the page has it."""
    answer = answer_to(mutation)
    said = [
        f"{finding.code} `{mutation.names if names(finding, mutation.names) else finding.parameter}`"
        for finding in answer.findings
    ]
    return f"{', '.join(said) or 'nothing'} ({COMMANDS[answer.phase]}, exit {answer.exit_code})"


def printed(mutation: Mutation) -> str:
    """The findings on a mutation, as the page has them: without the path of the temporary folder."""
    path = re.compile(rf"[^`\s(]*/(?={mutation.key}\b)")
    return "\n".join(
        f"{finding.severity}[{finding.code}]: {path.sub('', finding.message)}\n  = help: {path.sub('', finding.help)}"
        for finding in answer_to(mutation).findings
    )
