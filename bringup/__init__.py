"""bringup compiles models from published checkpoints, and checks each step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

__version__ = "0.1.0"
STARTED = time.time()  # this process may have imported an earlier version of a source file that is newer

if TYPE_CHECKING:
    from bringup.compile.convert.adapt import adapt as adapt
    from bringup.compile.convert.convert import convert as convert
    from bringup.compile.convert.export import export as export
    from bringup.compile.job import open_job as open_job
    from bringup.compile.pipeline import build as build
    from bringup.compile.pipeline import check as check
    from bringup.compile.ranks.verify import verify_ranks as verify_ranks
    from bringup.compile.runtime.batch import load_batch as load_batch
    from bringup.compile.runtime.request import Request as Request
    from bringup.compile.runtime.session import load as load
    from bringup.compile.runtime.speculative import Speculative as Speculative
    from bringup.compile.verify.command import verify as verify
else:
    from bringup.facade import lazy_dir, lazy_import, public_names

    _HOMES = {
        "compile.convert.adapt": "adapt",
        "compile.convert.convert": "convert",
        "compile.convert.export": "export",
        "compile.job": "open_job",
        "compile.pipeline": "build check",
        "compile.ranks.verify": "verify_ranks",
        "compile.runtime.batch": "load_batch",
        "compile.runtime.request": "Request",
        "compile.runtime.session": "load",
        "compile.runtime.speculative": "Speculative",
        "compile.verify.command": "verify",
    }
    __all__ = ["__version__", *public_names(_HOMES)]
    __getattr__ = lazy_import(__name__, _HOMES)
    __dir__ = lazy_dir(__all__, globals())
