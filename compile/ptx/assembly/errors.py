"""What can be wrong with PTX: the text, an instruction that is not supported, an access while it runs."""

from __future__ import annotations


class PtxError(Exception):
    """Any of the errors below."""


class Malformed(PtxError):
    """Text that is not PTX. `ptx_line` counts from 1."""

    def __init__(self, message: str, ptx_line: int) -> None:
        super().__init__(f"PTX line {ptx_line}: {message}")
        self.message, self.ptx_line = message, ptx_line


class Unsupported(PtxError):
    """PTX that the emulator does not run: `instruction` is its text, `line` its line in the PTX, counted from 1.

    `source` is the line of the kernel's source that it was compiled from (`file.py:12`), if the PTX has it.
    """

    def __init__(self, instruction: str, line: int, *, source: str = "", reason: str = "") -> None:
        where = f" (from {source})" if source else ""
        super().__init__(f"unsupported PTX at line {line}{where}: {instruction}{f': {reason}' if reason else ''}")
        self.instruction, self.line, self.source, self.reason = instruction, line, source, reason


class Fault(PtxError):
    """An access or a synchronisation that is wrong on hardware too: the message has the place and the lanes."""
