"""Where the keys of a config are stated: messages name the file that the user must edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class ConfigPlaces:
    """`file` is the name of the file with the keys of a config; `others` has those of keys that are in another file."""

    file: str = CONFIG
    others: Mapping[str, str] = field(default_factory=dict[str, str])

    def of(self, key: str) -> str:
        """The file of a key. An absent key belongs to `file`."""
        return self.others.get(key, self.file)


IN_CONFIG = ConfigPlaces()
