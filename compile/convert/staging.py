"""The staging folder of a conversion, `.NAME.resume`, and its journal of written shards."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from bringup.diagnostics import BringupError
from bringup.system.os_errors import unwritable

JOURNAL = "journal"
INPUTS = frozenset({"inputs"})  # the keys of the journal's first line, and of all others
SHARD = frozenset({"shard", "sha256"})


@dataclass(slots=True)
class Staging:
    """The folder of a running conversion, and the shards in its journal: digest of the bytes by key.

    `inputs` is the digest of the inputs; "" if it is unknown: then no later run resumes it.
    """

    folder: Path
    inputs: str
    written: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def opened(cls, folder: Path, inputs: str) -> Staging:
        """The staging of an earlier run with the same inputs; otherwise a new one. Raises BU901, BU902."""
        found = cls(folder, inputs)
        try:
            lines = _good_lines(folder / JOURNAL) if inputs and not folder.is_symlink() else []
            if not lines or lines[0] != {"inputs": inputs}:
                found._begin()
                return found
        except OSError as error:
            raise unwritable(error, folder) from error
        found.written = {line["shard"]: line["sha256"] for line in lines[1:]}
        return found

    def add(self, key: str, digest: str) -> None:
        """Records a shard whose bytes are on disk."""
        self.written[key] = digest
        self._append({"shard": key, "sha256": digest})

    def take_into(self, folder: Path, files: Sequence[str]) -> None:
        """Moves the finished files to the folder of the result, and removes the staging."""
        for file in files:
            (self.folder / file).rename(folder / file)
        _remove(self.folder)

    def abandon(self) -> None:
        """After an error: removes the staging, unless a later run can resume it."""
        if not self.written or not self.inputs:
            self.discard()

    def discard(self) -> None:
        """Removes the staging and its files."""
        _remove(self.folder)

    def named_in(self, error: BringupError) -> BringupError:
        """The error; if the staging is kept, its help names the folder."""
        if not self.folder.exists():
            return error
        help = f"`{self.folder}` has what was written: the same command continues from it; remove it to free its space"
        findings = [
            replace(finding, help=f"{finding.help}; {help}" if finding.help else help) for finding in error.findings
        ]
        return BringupError(*findings)

    def _begin(self) -> None:
        self.discard()
        self.folder.mkdir(parents=True)
        try:
            self._append({"inputs": self.inputs})
        except OSError:
            self.discard()
            raise

    def _append(self, line: Mapping[str, str]) -> None:
        with (self.folder / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _remove(folder: Path) -> None:
    """Removes a folder; for a link, only the link."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _good_lines(journal: Path) -> list[dict[str, str]]:
    """The lines of a journal up to the first that is incomplete or invalid; the journal is truncated there.

    Otherwise the next line would be appended to an incomplete one. Raises OSError.
    """
    try:
        data = journal.read_bytes()
    except FileNotFoundError:
        return []
    lines: list[dict[str, str]] = []
    size = 0
    for text in data.splitlines(keepends=True):
        line = _line(text, SHARD if lines else INPUTS)
        if line is None:
            break
        lines.append(line)
        size += len(text)
    if size < len(data):
        with journal.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
    return lines


def _line(text: bytes, keys: frozenset[str]) -> dict[str, str] | None:
    """An object of texts with these keys; None otherwise."""
    if not text.endswith(b"\n"):
        return None
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    line = cast("dict[str, object]", value)
    if line.keys() != keys or not all(isinstance(each, str) for each in line.values()):
        return None
    return cast("dict[str, str]", line)
