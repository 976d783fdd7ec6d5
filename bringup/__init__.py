"""bringup compiles models from published checkpoints, and checks each step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

__version__ = "0.1.0"
STARTED = time.time()  # a source file that is younger may not be what this process runs

if TYPE_CHECKING:
    from bringup.compile.job import open_job as open_job
    from bringup.compile.pipeline import build as build
    from bringup.compile.pipeline import check as check
    from bringup.compile.runtime.session import load as load
    from bringup.compile.verify.command import verify as verify
else:
    from bringup.facade import lazy_import, public_names

    _HOMES = {
        "compile.job": "open_job",
        "compile.pipeline": "build check",
        "compile.runtime.session": "load",
        "compile.verify.command": "verify",
    }
    __all__ = ["__version__", *public_names(_HOMES)]
    __getattr__ = lazy_import(__name__, _HOMES)
