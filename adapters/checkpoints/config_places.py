"""Where the keys of a config are stated: messages name the file, and the key in it, that the user must edit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bringup.diagnostics import Diagnostic

CONFIG = "config.json"
KEY = re.compile(r"`(\w+)`")


@dataclass(frozen=True, slots=True)
class ConfigPlaces:
    """`file` is the name of the file with the keys of a config; `others` has those of keys that are in another file.

    `names` has the names of keys that the file has under other names: the metadata of a GGUF file.
    """

    file: str = CONFIG
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def of(self, key: str) -> str:
        """The file of a key. An absent key belongs to `file`."""
        return self.others.get(key, self.file)

    def in_file(self, finding: Diagnostic) -> Diagnostic:
        """A finding whose message and help name keys as the file does."""
        if not self.names:
            return finding
        return replace(finding, message=self._renamed(finding.message), help=self._renamed(finding.help))

    def _renamed(self, text: str) -> str:
        return KEY.sub(lambda found: f"`{self.names.get(found[1], found[1])}`", text)


IN_CONFIG = ConfigPlaces()
