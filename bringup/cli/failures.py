"""What stopped a command, told on stderr, and the exit code that goes with it."""

from __future__ import annotations

import os
import sys
import traceback

from bringup import __version__
from bringup.cli.packages import needed
from bringup.diagnostics import BringupError, Diagnostic, Severity
from bringup.render.report import findings_text, pointer
from bringup.render.terminal import Paint
from bringup.render.words import plural

PIPE_CLOSED, BUG = 141, 101


def told(error: Exception, *, verbose: bool) -> int:
    """1 when the model is wrong, 2 the command, 3 the machine, 101 bringup."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed once more at exit
        return PIPE_CLOSED
    if verbose:
        traceback.print_exception(error)
    known = error if isinstance(error, BringupError) else _of_the_machine(error)
    if known is None:
        return _bug(error, verbose)
    paint = Paint.of(sys.stderr)
    count = sum(finding.severity is Severity.ERROR for finding in known.findings)
    sys.stderr.write(findings_text(known.findings, paint))
    sys.stderr.write(f"{paint(plural(count, 'error'), 'red')}; {pointer(known.findings)}\n")
    return known.exit_code


def _of_the_machine(error: Exception) -> BringupError | None:
    """A package that is not installed, and what the operating system refuses, as diagnostics."""
    if isinstance(error, ImportError) and (package := needed(error.name or "")):
        missing = isinstance(error, ModuleNotFoundError)
        message = f"`{package.name}` {'is not installed' if missing else f'cannot be loaded: {error}'}"
        return BringupError(Diagnostic(code="BU922", message=message, help=f"run: {package.install}"))
    if isinstance(error, OSError) and error.strerror:
        place = f": `{error.filename}`" if error.filename else ""
        return BringupError(Diagnostic(code="BU901", message=f"{error.strerror.lower()}{place}"))
    return None


def _bug(error: Exception, verbose: bool) -> int:
    place = traceback.extract_tb(error.__traceback__)[-1]
    again = "" if verbose else "; `bringup -v …` shows where it comes from"
    sys.stderr.write(
        f"this is a bug in bringup {__version__}: {type(error).__name__}: {error}\n"
        f"  at {place.filename}:{place.lineno}{again}\n"
        "  please report it with the command you typed\n"
    )
    return BUG
