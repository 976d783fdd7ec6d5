"""Loads many folders after one import of the tool.

The output of a load is written to `said.txt` in its folder, its exit code to `exit_code`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path


def each(arguments: Sequence[str], load: Callable[[Path, str], None]) -> None:
    """`arguments` are FOLDER,MORE pairs for `load`. An exception is printed as a traceback; the exit code is 1."""
    terminal = [os.dup(stream) for stream in (1, 2)]
    for pair in arguments:
        name, _, more = pair.partition(",")
        folder = Path(name)
        with (folder / "said.txt").open("wb") as said:
            for stream in (1, 2):
                os.dup2(said.fileno(), stream)
        code = 0
        try:
            load(folder, more)
        except Exception:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, saved in zip((1, 2), terminal, strict=True):
            os.dup2(saved, stream)
        (folder / "exit_code").write_text(str(code), "utf-8")
