"""Prints the error that stopped a command to stderr, and computes its exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace

import click

from bringup import __version__
from bringup.cli.environment.packages import needed
from bringup.cli.errors import reserve
from bringup.cli.parameters.usage import of_usage
from bringup.diagnostics import BringupError, Diagnostic, Report, Severity
from bringup.render.report import findings_text, pointer
from bringup.render.terminal import Paint, on_github
from bringup.render.visible import visible
from bringup.render.words import plural
from bringup.system import signals
from bringup.system.os_errors import reason

PIPE_CLOSED, BUG = 141, 101  # 141: as if ended by SIGPIPE


def report_error(error: Exception, words: Sequence[str], *, verbose: bool) -> int:
    """Prints an error. Returns 1 if the model is wrong, 2 the command, 3 the machine, 101 bringup."""
    reserve.let_go()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, OSError):
        _give_up_stdout()
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    if verbose and not isinstance(error, click.ClickException):
        traceback.print_exception(error)
    known = diagnosed(error, words[0] if words else "")
    if known is None:
        return signals.report_stop(error) if signals.was_signalled() else _bug(error, words)
    paint = Paint.of(sys.stderr)
    count = sum(finding.severity is Severity.ERROR for finding in known.findings)
    sys.stderr.write(findings_text(known.findings, paint))
    sys.stderr.write(f"{paint(plural(count, 'error'), 'red')}; {pointer(known.findings)}\n")
    if on_github():
        from bringup.render.formats.actions import tell_github

        tell_github(Report(findings=list(known.findings)))
    return known.exit_code


def diagnosed(error: Exception, command: str = "") -> BringupError | None:
    """An error as diagnostics; None for a bug of bringup. `command` is the first word of the command line."""
    if isinstance(error, BringupError):
        return error
    if isinstance(error, click.ClickException):
        return of_usage(error, command)
    from bringup.cli.errors.culprit import of_user_code
    from bringup.system.os_errors import refused

    if short := refused(error):
        return short
    missing = isinstance(error, ImportError) and needed(error.name or "")
    return (None if missing else of_user_code(error)) or _of_the_machine(error)


def findings_of(error: Exception) -> list[Diagnostic]:
    """An error as findings of a report. A bug of bringup is raised again."""
    known = diagnosed(error)
    if known is None:
        raise error
    if _is_verbose():
        traceback.print_exception(error)
    return list(known.findings)


def warn(errors: Sequence[BringupError]) -> None:
    """Prints warnings to stderr; with -v their tracebacks."""
    findings = [replace(finding, severity=Severity.WARNING) for error in errors for finding in error.findings]
    if findings:
        sys.stdout.flush()
        sys.stderr.write(findings_text(findings, Paint.of(sys.stderr)))
    for error in errors if _is_verbose() else ():
        traceback.print_exception(error)


def _is_verbose() -> bool:
    """Whether the command line has -v."""
    context = click.get_current_context(silent=True)
    return bool(context and getattr(context.find_root().command, "verbose", False))


def _give_up_stdout() -> None:
    """Redirects stdout to the null device: otherwise its error would occur again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _of_the_machine(error: Exception) -> BringupError | None:
    """A package that is not installed, and errors of the operating system, as diagnostics."""
    if isinstance(error, ImportError) and (package := needed(error.name or "")):
        missing = isinstance(error, ModuleNotFoundError)
        message = f"`{package.name}` {'is not installed' if missing else f'cannot be loaded: {error}'}"
        return BringupError(Diagnostic(code="BU922", message=message, help=f"run: {package.smallest}"))
    if isinstance(error, OSError) and error.strerror:
        place = f": `{error.filename}`" if error.filename else ""
        denied = isinstance(error, PermissionError)
        help = "this user may not access it: change its permissions, or name another path" if denied else ""
        return BringupError(Diagnostic(code="BU901", message=f"{reason(error)}{place}", help=help))
    return None


def _bug(error: Exception, words: Sequence[str]) -> int:
    from bringup.cli.errors.crash import report, save, scrubbed

    text = report(error, words)
    path = save(text)
    message = traceback.format_exception_only(error)[-1].partition("\n")[0]
    sys.stderr.write(f"this is a bug in bringup {__version__}: {visible(scrubbed(message))}\n")
    if path:
        sys.stderr.write(f"  crash report: {path}\n  please report it with that file\n")
    else:
        sys.stderr.write(f"  please report it with the following text: no folder is writable\n\n{text}")
    return BUG
