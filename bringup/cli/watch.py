"""`bringup check --watch`: repeats the check in a new process whenever a file that it read changes.

Run as a module, this file is that process: it records each file that is opened, with its state at that moment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bringup.render.terminal import is_live
from bringup.render.words import plural
from bringup.system.signals import Stopped

POLL = 0.3  # seconds
STEADY = 1  # polls without a further change after which files count as written
EMPTIED = 7  # the same where one of them is empty or absent: programs truncate or delete a file, and then write it
_CLEAR = "\x1b[2J\x1b[3J\x1b[H"
_WEIGHTS = (
    ".safetensors",
    ".gguf",
    ".json",
    ".bin",
    ".pt",
    ".pth",
    ".npz",
    ".npy",
)  # files of a folder that may belong to a checkpoint
_PLACES = ("stdlib", "platstdlib", "purelib", "platlib")
_WRITES = os.O_WRONLY | os.O_RDWR

State = list[Any] | None  # values that change with a file; None if it does not exist


def watch(words: Sequence[str], named: Iterable[str | None]) -> NoReturn:
    """Checks, waits for a change, checks again, until Ctrl-C. `named` are the paths on the command line."""
    try:
        _rounds(words, named)
    except KeyboardInterrupt as stopped:  # the usual end: no message
        sys.exit(stopped.exit_code if isinstance(stopped, Stopped) else 128 + signal.SIGINT)


def _rounds(words: Sequence[str], named: Iterable[str | None]) -> NoReturn:
    paths = [str(Path(name).expanduser()) for name in named if name and "://" not in name]
    seen: dict[str, State] = {}
    with tempfile.TemporaryDirectory(prefix="bringup-") as folder:
        notes = Path(folder, "opened.json")
        while True:
            start = {path: state(path) for path in (*seen, *paths)}
            complete = _check(words, notes) in (0, 1)  # a check that is stopped has not read all files that it needs
            retained = {path: found for path, found in start.items() if path in paths or found is None or not complete}
            opened: dict[str, State] = json.loads(notes.read_text("utf-8")) if notes.exists() else {}
            seen = retained | opened
            print(f"watching {plural(len(seen), 'file')}; Ctrl-C ends", file=sys.stderr)
            changed = ", ".join(_shown(path) for path in _wait(seen))
            sys.stdout.write(_CLEAR if is_live(sys.stdout) else "")
            sys.stdout.flush()
            print(f"{time.strftime('%H:%M:%S')} changed: {changed}", file=sys.stderr)


def _check(words: Sequence[str], notes: Path) -> int:
    """Runs one check, in a session of its own, because Ctrl-C is for this process. No bytecode is written: if a file
    changes twice in a second, its bytecode would seem current."""
    notes.unlink(missing_ok=True)
    command = [sys.executable, "-B", "-m", "bringup.cli.watch", str(notes), *words]
    return subprocess.run(command, check=False, start_new_session=True).returncode


def _wait(seen: Mapping[str, State]) -> list[str]:
    """The paths that changed, once no more changes occur."""
    now, steady = dict(seen), 0
    while True:
        time.sleep(POLL)
        before, now = now, {path: state(path) for path in seen}
        steady = steady + 1 if now == before else 0
        changed = [path for path in seen if now[path] != seen[path]]
        if changed and steady >= (EMPTIED if any(_is_empty(now[path]) for path in changed) else STEADY):
            return changed


def _is_empty(found: State) -> bool:
    """Whether a file or folder has no contents, or does not exist."""
    return not found or found[0] == 0


def state(path: str) -> State:
    """The size, times of change and inode of a file; for a folder, the names that may belong to a checkpoint."""
    try:
        if os.path.isdir(path):  # noqa: PTH112  thrice a second for each file
            return sorted(name for name in os.listdir(path) if name.endswith(_WEIGHTS))  # noqa: PTH208
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _shown(path: str) -> str:
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path


def _note_opened(notes: Path, words: list[str]) -> None:
    """Runs the command line and writes the state that each file had when it was first opened."""
    opened: dict[str, State] = {}
    foreign = ("/proc/", "/sys/", "/dev/", "/etc/", *(f"{sysconfig.get_path(place)}/" for place in _PLACES))

    def note(event: str, details: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(details[0], str) and not _is_for_writing(*details[1:3]):
            path = _source(os.path.abspath(details[0]))  # noqa: PTH100
            if path not in opened and not path.startswith(foreign):
                opened[path] = state(path)

    sys.addaudithook(note)
    sys.argv = ["bringup", *words]
    try:
        from bringup.cli.main import main

        main()
    finally:
        notes.write_text(json.dumps({path: found for path, found in opened.items() if found}), "utf-8")


def _is_for_writing(mode: str | None, flags: int) -> bool:
    return any(letter in mode for letter in "wax+") if mode else bool(flags & _WRITES)


def _source(path: str) -> str:
    """The source file of bytecode."""
    if not path.endswith(".pyc"):
        return path
    from importlib.util import source_from_cache

    return source_from_cache(path)


if __name__ == "__main__":
    _note_opened(Path(sys.argv[1]), sys.argv[2:])
