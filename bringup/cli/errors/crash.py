"""Crash reports: a file that can be attached to a bug report, without secrets."""

from __future__ import annotations

import os
import platform
import re
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from bringup.cli.environment.packages import versions
from bringup.progress import RECENT_LINES

_OURS = ("BRINGUP_", "HF_", "TRANSFORMERS_", "IREE_", "TORCH_", "CUDA_", "OMP_")  # names only, never values
_SECRET = re.compile(r"token|secret|passw|credential|api[_-]?key", re.IGNORECASE)
_SCRUBS = (
    (re.compile(r"(\w+://)[^/\s@'\"]+@"), r"\1…@"),
    (re.compile(r"\bhf_[A-Za-z0-9]{8,}"), "hf_…"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 …"),
    (
        re.compile(
            r"(?i)((?:token|secret|passw\w*|credential|api[_-]?key|signature|sig)['\"]?(?:[=:]\s*|\s+)['\"]?)[^\s&'\",]+"
        ),
        r"\1…",
    ),
)


def report(error: BaseException, words: Sequence[str]) -> str:
    """Versions, command, names of environment variables, the last progress lines, traceback.

    All of it can be encoded as UTF-8: invalid bytes in names are escaped.
    """
    variables = sorted(name for name in os.environ if name.startswith(_OURS))
    parts = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "versions": versions(),
        "system": platform.platform(),
        "command": " ".join(["bringup", *map(_quoted, words)]),
        "environment (names only)": "\n".join(variables) or "nothing of interest",
        "last messages": "\n".join(RECENT_LINES) or "nothing",
        "traceback": "".join(traceback.format_exception(error)),
    }
    text = scrubbed("\n".join(f"## {title}\n\n{text.rstrip()}\n" for title, text in parts.items()))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def scrubbed(text: str) -> str:
    """The text without secrets: passwords in links, tokens, values of variables with such names."""
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) >= 8:
            text = text.replace(value, "…")
    for pattern, instead in _SCRUBS:
        text = pattern.sub(instead, text)
    return text


def save(text: str) -> Path | None:
    """Writes a report to the first writable folder; None if there is none."""
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            path.write_text(text, "utf-8")
            path.chmod(0o600)
        except (OSError, RuntimeError):
            continue
        return path
    return None


def _folders() -> Iterable[Path]:
    """https://specifications.freedesktop.org/basedir-spec: persistent state; otherwise temporary files."""
    state = os.environ.get("XDG_STATE_HOME", "")
    yield (Path(state) if Path(state).is_absolute() else Path("~/.local/state").expanduser()) / "bringup"
    yield Path(tempfile.gettempdir())


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)
