"""Published config.json files, by family and by their names on the Hugging Face hub.

`published_words.json` has each with the source of its keys and values. Keys that no source states are left out: dtypes,
versions and the token ids of many. So these are the keys of the files, not the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_ENTRIES: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("published_words.json").read_text("utf-8")
)
SOURCES: dict[str, str] = {name: entry["source"] for files in _ENTRIES.values() for name, entry in files.items()}
PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    family: {name: entry["config"] for name, entry in files.items()} for family, files in _ENTRIES.items()
}
