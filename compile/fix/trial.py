"""The proof of an edit: plans and checks the job again with the edited file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from bringup.adapters.planning.adapter import Adapter
from bringup.compile.adapter_file import as_stored
from bringup.compile.check.checker import check
from bringup.compile.fix.pyfile import PyFile
from bringup.compile.job import Job
from bringup.compile.planned import planned
from bringup.diagnostics import BringupError, Fix
from bringup.userfiles import builtins_of

_TRIAL = "bringup_fix_trial"
NAMES = "names"
Facts = frozenset[tuple[str, str, str]]
# Errors of an edited file's own code: a ValueError is also a conflict of edits, a SyntaxError a quote in a name.
_REFUSALS = (BringupError, SyntaxError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, NameError,
             AssertionError, re.error)  # fmt: skip


def facts(job: Job) -> Facts:
    """The problems, separately for each tensor, so that they do not depend on how findings are grouped."""
    plan = job.plan
    found = {(kind(p.code), p.parameter, source) for p in plan.problems for source in p.sources or ("",)}
    found |= {(NAMES, "", name) for name in plan.unread}
    reported = ((kind(finding.code), finding.sources) for finding in check(plan).errors)
    return frozenset(found | {(code, "", source) for code, sources in reported if code != NAMES for source in sources})


def kind(code: str) -> str:
    """A code; one for all codes of missing or unread names, which may be one finding or two."""
    return NAMES if code in ("BU101", "BU105", "BU109") else code


@dataclass(frozen=True)
class Bench:
    """Tries edits of one job's adapter file."""

    job: Job
    file: PyFile
    function: str  # the function in that file that creates the adapter; "" if the file defines a family

    @classmethod
    def of(cls, job: Job) -> Bench | None:
        """None if the adapter is not defined by a single Python file."""
        file, function = adapter_file(job)
        if file is None:
            return None
        return cls(job, PyFile.read(file), function)

    def with_edits(self, fixes: Iterable[Fix]) -> Job | None:
        """The job with the adapter of the edited file; None if it defines none, or if edits conflict."""
        try:
            written, headers = self._adapter_of(self.file.edited(fixes)), self.job.checkpoint.headers
            adapter, _ = as_stored(written, self.job.graph, headers, self.job.config, self.job.family)
            plan = planned(self.job.graph, adapter, headers)
        except _REFUSALS:
            return None  # the file's own code fails with the new name
        return replace(self.job, adapter=adapter, plan=plan)

    def _adapter_of(self, file: PyFile) -> Adapter:
        """Runs the text in a module of its own; the file on disk is not changed."""
        module = sys.modules[_TRIAL] = ModuleType(_TRIAL)  # dataclasses find their module there
        module.__file__ = str(file.path)
        module.__dict__["__builtins__"] = builtins_of(file.path)  # it can import modules next to the file, too
        try:
            exec(compile(file.text, str(file.path), "exec", dont_inherit=True), module.__dict__)
            make: Any = getattr(module, self.function) if self.function else module.__dict__["family"].load("adapter")
            return make(self.job.graph.config)
        finally:
            del sys.modules[_TRIAL]


def adapter_file(job: Job) -> tuple[Path | None, str]:
    """The file with the job's rules, and the name of the function in it."""
    if job.adapter_file:
        return Path(job.adapter_file), "adapter"
    if job.checkpoint.gguf and (dialect := job.family.load("dialect")):
        return Path(dialect.table.__code__.co_filename).resolve(), dialect.table.__name__
    if isinstance(job.family.adapter, str):
        module, _, name = job.family.adapter.partition(":")
        spec = find_spec(module)
        return (Path(spec.origin).resolve() if spec and spec.origin else None), name
    return (Path(job.model) if job.model and job.model.endswith(".py") else None), ""
