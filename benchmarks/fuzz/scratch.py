"""A file for parsers that read files. It is rewritten for each input, in a file system in memory if there is one."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")


def scratch_folder() -> Path:
    """An empty folder that vanishes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
