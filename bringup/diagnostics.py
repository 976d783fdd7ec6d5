"""What bringup says when something is wrong: a coded finding, a report of findings, the error that carries them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

from bringup.spec import Site


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One mistake, told once. `message` stands alone; `help` says what to do; `where` is the rule's line.

    `parameter` and `sources` name what is concerned, layers grouped (`h.{0..11}.attn.c_attn.weight`).
    """

    code: str
    message: str
    help: str = ""
    severity: Severity = Severity.ERROR
    parameter: str = ""
    sources: tuple[str, ...] = ()
    expected: str = ""
    actual: str = ""
    where: Site | None = None
    declared: Site | None = None
    file: str = ""

    def as_json(self) -> dict[str, Any]:
        """The shape of one entry of `findings` in `check --format json`."""
        rule = {"file": self.where.path, "line": self.where.line} if self.where else None
        keep = ("code", "severity", "parameter", "expected", "actual", "message", "help")
        return {key: getattr(self, key) for key in keep} | {"sources": list(self.sources), "rule": rule}


class Sites(TypedDict, total=False):
    """Where a diagnostic points: the rule's line, the parameter's, the checkpoint's file."""

    where: Site | None
    declared: Site | None
    file: str


@dataclass(slots=True)
class Report:
    """The outcome of a check: every finding, and what was counted."""

    model: str = ""
    findings: list[Diagnostic] = field(default_factory=list[Diagnostic])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def errors(self) -> list[Diagnostic]:
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    def raise_if_errors(self) -> None:
        """Raises BringupError with every error of the report."""
        if not self.ok:
            raise BringupError(*self.findings)


class BringupError(Exception):
    """The user's or the machine's fault, as one or more diagnostics; the exit code follows from the codes."""

    def __init__(self, *findings: Diagnostic) -> None:
        assert findings, "an error says what is wrong"
        self.findings = findings
        super().__init__("\n".join(f"{finding.code}: {finding.message}" for finding in findings))

    @property
    def exit_code(self) -> int:
        """2 for BU0xx (the command is wrong), 3 for BU9xx (the machine is wrong), otherwise 1 (the model is wrong)."""
        return {"0": 2, "9": 3}.get(self.findings[0].code[2], 1)


def fail(code: str, message: str, **details: Any) -> BringupError:
    """A BringupError of a single diagnostic: `raise fail("BU201", "…", help="…")`."""
    return BringupError(Diagnostic(code=code, message=message, **details))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean `x`?`, or nothing when no known name is close."""
    import difflib  # 10 ms: only when something is wrong

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"did you mean `{close[0]}`?" if close else ""
