"""Standard streams that the parent process has closed: `bringup check … >&-`."""

from __future__ import annotations

import os
import sys

_NAMES = ("stdin", "stdout", "stderr")  # by descriptor


def open_closed() -> None:
    """Opens the null device for each, so that no other file gets its descriptor. What is written to it is lost.

    Python's stream is otherwise None, to which nothing can be written.
    """
    for descriptor, name in enumerate(_NAMES):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
        setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))
