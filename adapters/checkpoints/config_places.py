"""Where the keys of a config are stated: messages name the file, and the key in it, that the user must edit."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bringup.adapters.checkpoints.config_lines import line_of
from bringup.diagnostics import BringupError, Diagnostic

CONFIG = "config.json"
KEY = re.compile(r"`(\w+)`")


@dataclass(frozen=True, slots=True)
class ConfigPlaces:
    """`file` is the name of the file with the keys of a config; `others` has those of keys that are in another file.

    `names` has the names of keys that the file has under other names: the metadata of a GGUF file. `path` is that of
    `file`, None if it is not on this machine.
    """

    file: str = CONFIG
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    path: Path | None = None

    def of(self, key: str) -> str:
        """The file of a key. An absent key belongs to `file`."""
        return self.others.get(key, self.file)

    def in_file(self, finding: Diagnostic) -> Diagnostic:
        """A finding whose message and help name keys as the file does; of one on a key, with its file and line."""
        if self.names:
            finding = replace(finding, message=self._renamed(finding.message), help=self._renamed(finding.help))
        if finding.file or finding.where or not finding.config_key or not isinstance(self.path, Path):
            return finding
        first, _, rest = finding.config_key.partition(".")
        path = self.path.with_name(self.others[first]) if first in self.others else self.path
        line = 0 if self.names else line_of(path, rest if first in self.others else finding.config_key)
        return replace(finding, file=str(path), line=line)

    @contextmanager
    def in_errors(self) -> Generator[None]:
        """An error in the block has its findings as `in_file` returns them."""
        try:
            yield
        except BringupError as error:
            raise BringupError(*map(self.in_file, error.findings)) from error

    def _renamed(self, text: str) -> str:
        return KEY.sub(lambda found: f"`{self.names.get(found[1], found[1])}`", text)


IN_CONFIG = ConfigPlaces()
