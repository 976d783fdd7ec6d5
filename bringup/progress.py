"""How long work tells of its stages. Compile code is handed a Progress and knows no more than this."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from bringup.diagnostics import Diagnostic

RECENT_LINES: deque[str] = deque(maxlen=30)  # the last lines that people were told: a crash report repeats them


class Stage(Protocol):
    """One stage under way."""

    def done(self, text: str) -> None:
        """What came of it, told when the stage ends: `149 parameters`."""
        ...

    def advance(self, fraction: float) -> None:
        """How much of it is done, 0 to 1."""
        ...


class Progress(Protocol):
    """Where stages are told. A name starts with its verb, which comes out as past: `Checking gpt2`."""

    def stage(self, name: str) -> AbstractContextManager[Stage]: ...

    def warn(self, finding: Diagnostic) -> None:
        """Something that does not stop the work and should be known."""
        ...


class Silent:
    """A progress, and a stage, that say nothing; what should be known is a Python warning."""

    @contextmanager
    def stage(self, name: str) -> Generator[Stage]:
        yield self

    def warn(self, finding: Diagnostic) -> None:
        warnings.warn(f"{finding.code}: {finding.message}", stacklevel=3)

    def done(self, text: str) -> None: ...

    def advance(self, fraction: float) -> None: ...
