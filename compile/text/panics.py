"""Calls into the Rust code of `tokenizers`, which reports errors in two ways.

For an unsupported file or text it raises a plain Exception. For an unexpected error it panics: it writes a backtrace to
stderr and raises pyo3's PanicException, a BaseException.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock

from bringup.diagnostics import BringupError


@contextmanager
def panics_as(make: Callable[[str], BringupError]) -> Generator[None, None, None]:
    """In the block, errors of the library are raised as `make(message)`, and stderr is discarded."""
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
    """Discards stderr from when the first thread enters until the last one has left."""

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
    """Redirects stderr to nowhere; returns a file descriptor of the original, -1 if there is none."""
    try:
        saved = os.dup(2)
    except OSError:
        return -1
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123  three system calls for each token
        os.dup2(nothing.fileno(), 2)
    return saved
