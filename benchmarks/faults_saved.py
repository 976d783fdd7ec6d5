"""The results of other programs, saved as they arrive, so that an interrupted run can resume."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.faults_page import Outcome


@dataclass
class Saved:
    """Outcomes in a folder: one JSON file each, with the logits in an .npy file of the same name. An outcome depends on
    the checkpoint's folder and on `tool`: the tool's name and version, and the text of the script that calls it.
    `oldest` is the date of the oldest outcome that `find` returned."""

    place: Path
    tool: str
    oldest: datetime.date = field(default_factory=datetime.date.today)

    def find(self, folder: Path, more: str) -> Outcome | None:
        file = self._file(folder, more)
        if not file.is_file():
            return None
        self.oldest = min(self.oldest, datetime.date.fromtimestamp(file.stat().st_mtime))
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
