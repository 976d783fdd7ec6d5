"""The environment of other programs: what they need to start, and no more. Tokens and keys of the user stay here."""

from __future__ import annotations

import os

# Where programs and libraries are found, where temporary files go, how text is written, what the time is.
_NEEDED = (
    *("PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("PYTHONHOME", "PYTHONPATH", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"),
    *("SYSTEMROOT", "TEMP", "TMP"),  # Windows: Python does not start without the first
)


def minimal(**more: str) -> dict[str, str]:
    """This process's variables that any program needs, and `more`."""
    needed = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    return {"PATH": os.defpath, **needed, **more}
