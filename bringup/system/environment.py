"""The environment of other programs: only the variables that they need to start, without tokens and keys."""

from __future__ import annotations

import os

# Paths of programs and libraries, of temporary files, the locale, the time zone.
_NEEDED = (
    *("PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("PYTHONHOME", "PYTHONPATH", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"),
    *("SYSTEMROOT", "TEMP", "TMP"),  # Windows: Python does not start without the first
)


def minimal(**more: str) -> dict[str, str]:
    """The variables of this process that any program needs, and `more`."""
    needed = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    return {"PATH": os.defpath, **needed, **more}
