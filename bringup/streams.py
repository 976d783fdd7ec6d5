"""Standard streams that whoever started the process has closed: `bringup check … >&-`."""

from __future__ import annotations

import os
import sys

_NAMES = ("stdin", "stdout", "stderr")  # by descriptor


def open_closed() -> None:
    """Opens the null device in place of each: nobody reads what is written, and no other file gets its descriptor.

    Python has None for such a stream, which nothing can be written to.
    """
    for descriptor, name in enumerate(_NAMES):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
        setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))
