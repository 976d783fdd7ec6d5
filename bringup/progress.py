"""Progress of long work. Code of compiles gets a Progress and does not depend on terminals."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from bringup.diagnostics import Diagnostic

RECENT_LINES: deque[str] = deque(maxlen=30)  # the last lines that were printed, for a crash report


class Stage(Protocol):
    """One running stage."""

    def done(self, text: str) -> None:
        """The result, printed when the stage ends: `149 parameters`."""
        ...

    def advance(self, fraction: float) -> None:
        """The fraction that is done, 0 to 1."""
        ...


class Progress(Protocol):
    """Displays stages. A name begins with a verb (`Checking gpt2`), which is printed in the past tense at the end."""

    def stage(self, name: str) -> AbstractContextManager[Stage]: ...

    def warn(self, finding: Diagnostic) -> None:
        """A finding that does not stop the work."""
        ...


class Silent:
    """A progress and a stage that print nothing; warnings become Python warnings."""

    @contextmanager
    def stage(self, name: str) -> Generator[Stage]:
        yield self

    def warn(self, finding: Diagnostic) -> None:
        warnings.warn(f"{finding.code}: {finding.message}", stacklevel=3)

    def done(self, text: str) -> None: ...

    def advance(self, fraction: float) -> None: ...
