"""bringup takes a model from a published checkpoint to a compiled graph that runs, and proves each step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

__version__ = "0.1.0"
STARTED = time.time()  # a source file that is younger may not be what this process runs
__all__ = ["__version__", "build", "check", "load", "open_job", "verify"]

if TYPE_CHECKING:
    from bringup.compile.job import open_job as open_job
    from bringup.compile.pipeline import build as build
    from bringup.compile.pipeline import check as check
    from bringup.compile.session import load as load
    from bringup.compile.verify import verify as verify
else:
    _HOMES = {"build": "pipeline", "check": "pipeline", "load": "session", "open_job": "job", "verify": "verify"}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module `bringup` has no attribute `{name}`")
        from importlib import import_module

        return getattr(import_module(f"bringup.compile.{_HOMES[name]}"), name)
