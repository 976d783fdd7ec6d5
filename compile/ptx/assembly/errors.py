"""The errors of the emulator: malformed text, an unsupported instruction, a fault at run time."""

from __future__ import annotations


class PtxError(Exception):
    """The base class of the errors below."""


class Malformed(PtxError):
    """Text that is not valid PTX. `ptx_line` counts from 1."""

    def __init__(self, message: str, ptx_line: int) -> None:
        super().__init__(f"PTX line {ptx_line}: {message}")
        self.message, self.ptx_line = message, ptx_line


class Unsupported(PtxError):
    """PTX that the emulator does not support: `instruction` is its text, `line` its line in the PTX, counted from 1.

    `source` is the line of the kernel's source that it was compiled from (`file.py:12`), if the PTX states it.
    """

    def __init__(self, instruction: str, line: int, *, source: str = "", reason: str = "") -> None:
        where = f" (from {source})" if source else ""
        super().__init__(f"unsupported PTX at line {line}{where}: {instruction}{f': {reason}' if reason else ''}")
        self.instruction, self.line, self.source, self.reason = instruction, line, source, reason


class Fault(PtxError):
    """An access or a synchronisation that is an error on hardware too. The message states location and lanes."""
