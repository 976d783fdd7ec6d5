"""Calls into the Rust code of `tokenizers`, which tells its faults in three ways.

For a file or a text that it cannot take it raises a bare Exception; where its authors expected no fault it panics,
which Python sees as pyo3's PanicException, a BaseException; and a panic writes a backtrace to stderr first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock

from bringup.diagnostics import BringupError


@contextmanager
def panics_as(make: Callable[[str], BringupError]) -> Generator[None, None, None]:
    """Raises what `make` gives for the fault's message; nothing else reaches stderr meanwhile."""
    try:
        with _no_stderr:
            yield
    except Exception as error:
        raise make(str(error)) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise make(f"the library panics: {error}") from None


class _Silence:
    """stderr leads nowhere from the first thread that enters until the last one has left."""

    def __init__(self) -> None:
        self._lock, self._inside, self._saved = Lock(), 0, -1

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._saved = _silenced()
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._saved >= 0:
                os.dup2(self._saved, 2)
                os.close(self._saved)


_no_stderr = _Silence()


def _silenced() -> int:
    """Has stderr lead nowhere; the number of what it was, -1 where there is none."""
    try:
        saved = os.dup(2)
    except OSError:
        return -1
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123  three calls to the system, for each token
        os.dup2(nothing.fileno(), 2)
    return saved
