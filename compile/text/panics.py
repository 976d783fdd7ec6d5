"""Calls into the Rust code of `tokenizers`, which tells its faults in three ways.

For a file or a text that it cannot take it raises a bare Exception; where its authors expected no fault it panics,
which Python sees as pyo3's PanicException, a BaseException; and a panic writes a backtrace to stderr first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

from bringup.diagnostics import BringupError


@contextmanager
def panics_as(make: Callable[[str], BringupError]) -> Generator[None, None, None]:
    """Raises what `make` gives for the fault's message; nothing else reaches stderr meanwhile."""
    try:
        with _no_stderr():
            yield
    except Exception as error:
        raise make(str(error)) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise make(f"the library panics: {error}") from None


@contextmanager
def _no_stderr() -> Generator[None, None, None]:
    try:
        saved = os.dup(2)
    except OSError:  # there is none
        yield
        return
    try:
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123  three calls to the system, for each token
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
