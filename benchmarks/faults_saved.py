"""What peers said of folders, saved as they say it: a run that ends early, or is ended, goes on where it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from faults_page import Outcome


@dataclass(frozen=True)
class Saved:
    """Outcomes in a folder: a JSON file each, with the logits in a file of the same name. `tool` is all but the folder
    that decides what is said: the name and version of the tool, and the text of the script that calls it."""

    place: Path
    tool: str

    def find(self, folder: Path, more: str) -> Outcome | None:
        file = self._file(folder, more)
        if not file.is_file():
            return None
        words, logits = json.loads(file.read_text("utf-8")), file.with_suffix(".npy")
        return Outcome(words["exit_code"], words["text"], np.load(logits) if logits.is_file() else None)

    def save(self, folder: Path, more: str, outcome: Outcome) -> None:
        file = self._file(folder, more)
        self.place.mkdir(parents=True, exist_ok=True)
        if outcome.logits is not None:
            np.save(file.with_suffix(".npy"), outcome.logits)
        file.write_text(json.dumps({"exit_code": outcome.exit_code, "text": outcome.text}), "utf-8")

    def _file(self, folder: Path, more: str) -> Path:
        digest = hashlib.sha256(f"{self.tool}\0{more}".encode())
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if path.name not in ("said.txt", "exit_code", "logits.npy"):
                digest.update(f"\0{path.relative_to(folder)}\0".encode() + path.read_bytes())
        return self.place / f"{folder.name}-{digest.hexdigest()[:16]}.json"
