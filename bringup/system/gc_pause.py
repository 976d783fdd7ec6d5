"""When not to look for garbage."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Generator[None]:
    """What makes many objects that live on (importing torch, tracing, reading 200,000 headers) runs without the
    collector: to look for garbage among them takes a fifth of its time, and more."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
