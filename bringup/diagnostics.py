"""Diagnostics: a finding with a code, a report of findings, and the error that contains them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

from bringup.nearest import nearest
from bringup.spec import Site


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Fix:
    """An edit that a check has proved to fix a finding: `old`, at `column` of a line, becomes `new`.

    `line` counts from 1; `column` from 0, in characters. Neither text spans lines; an empty `old` inserts.
    """

    file: str
    line: int
    column: int
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One mistake. `message` needs no context; `help` has the fix; `where` is the rule's line.

    `parameter` and `sources` are the names that it is about, layers grouped (`h.{0..11}.attn.c_attn.weight`).
    `declared` is the parameter's line, `file` the checkpoint's file, `line` a line of it (from 1; 0: none) and `tensor`
    the first tensor in it with the mistake. `stops` is a quantity that planning needs and that is unknown because of
    it: "size", "layers" or "experts" (their number), "" for none. `config_key` is the dotted path of the config key
    that it is about, or that alone determines the wrong size of an axis. `lost`: tensors are in a file that cannot be
    read, and their names are unknown unless `sources` lists them.
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
    line: int = 0
    tensor: str = ""
    fixes: tuple[Fix, ...] = ()
    stops: str = ""
    config_key: str = ""
    lost: bool = False

    @property
    def where_label(self) -> str:
        """What `where` is: the rule of an adapter, or the line at which a user's file fails (BU026)."""
        return "the line" if self.code == "BU026" else "the rule"

    @property
    def text(self) -> str:
        """Code, message, place and help, for callers from Python."""
        lines = [f"{self.code}: {self.message}"]
        lines += [f"  --> {self.where}"] if self.where else []
        lines += [f"  = help: {self.help}"] if self.help else []
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The shape of one entry of `findings` in `check --format json`."""
        plain = ("code", "severity", "parameter", "sources", "expected", "actual", "message", "help")
        sites = {"rule": self.where, "declared": self.declared}
        return (
            {name: getattr(self, name) for name in plain}
            | {name: {"file": site.path, "line": site.line} if site else None for name, site in sites.items()}
            | {
                "file": self.file,
                "line": self.line or None,
                "fixes": [asdict(fix) | {"file": Site(fix.file, fix.line).path} for fix in self.fixes],
            }
        )


class Sites(TypedDict, total=False):
    """The positions of a diagnostic: the rule's line, the parameter's, the checkpoint's file."""

    where: Site | None
    declared: Site | None
    file: str
    tensor: str


@dataclass(slots=True)
class Report:
    """The result of a check: every finding, counts, and the names of the parameters that were checked.

    `bytes_per_rank` is the number of bytes that each rank of a group holds in the parameters' dtypes, if ranks were
    requested; `stored_bytes_per_rank` with packed weights, if the checkpoint has quantised ones; `read_bytes_per_rank`
    the number of bytes that a conversion of that rank alone reads of the checkpoint's files.
    """

    model: str = ""
    findings: list[Diagnostic] = field(default_factory=list[Diagnostic])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0
    parameters: tuple[str, ...] = ()
    bytes_per_rank: list[int] = field(default_factory=list[int])
    stored_bytes_per_rank: list[int] = field(default_factory=list[int])
    read_bytes_per_rank: list[int] = field(default_factory=list[int])
    dtype: str = ""  # of most parameters, if ranks were requested

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def errors(self) -> list[Diagnostic]:
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    @property
    def warnings(self) -> list[Diagnostic]:
        return [finding for finding in self.findings if finding.severity is Severity.WARNING]

    @property
    def exit_code(self) -> int:
        """0 if the checkpoint fits, otherwise that of a BringupError."""
        return 0 if self.ok else BringupError(*self.errors).exit_code

    def raise_if_errors(self) -> None:
        """Raises BringupError with every error of the report."""
        if not self.ok:
            raise BringupError(*self.findings)


class BringupError(Exception):
    """An error of the user or of the machine, as one or more diagnostics; the exit code follows from the codes."""

    def __init__(self, *findings: Diagnostic) -> None:
        assert findings, "an error says what is wrong"
        self.findings = findings
        super().__init__(*findings)

    def __str__(self) -> str:
        """The last lines of a traceback: each finding with the line of its rule and the fix."""
        return "\n".join(finding.text for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """2 for BU0xx (the command is wrong), 3 for BU9xx (the machine is wrong), otherwise 1 (the model is wrong)."""
        return {"0": 2, "9": 3}.get(self.findings[0].code[2], 1)


def fail(code: str, message: str, **details: Any) -> BringupError:
    """A BringupError with a single diagnostic: `raise fail("BU201", "…", help="…")`."""
    return BringupError(Diagnostic(code=code, message=message, **details))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean `x`?` or `did you mean `x` or `y`?`; "" if no known name is close."""
    close = " or ".join(f"`{other}`" for other in nearest(name, list(known)))
    return f"did you mean {close}?" if close else ""
