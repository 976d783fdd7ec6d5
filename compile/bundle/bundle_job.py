"""The job that a bundle was compiled from, reconstructed from its manifest."""

from __future__ import annotations

import re
from dataclasses import replace
from os import PathLike
from typing import Any

from bringup.adapters.sources.open_checkpoint import Access
from bringup.compile.job import Job, open_job
from bringup.diagnostics import BringupError, fail
from bringup.graphs.core.options import GraphOptions


def job_of_bundle(manifest: dict[str, Any], checkpoint: str | PathLike[str] | None) -> Job:
    """The job that a bundle was built from: the same model, config, options, adapter and allowances.

    Its sources are the same too, unless a `checkpoint` is passed, which must then have all tensors.
    """
    try:
        return _opened(manifest, checkpoint)
    except BringupError as error:
        first, *others = error.findings
        if first.code == "BU002":
            help = "the bundle's model has a Python file: restore it, or name its folder in BRINGUP_MODELS"
        elif first.code == "BU034" and checkpoint is None:
            help = "the bundle was compiled from it: if it has moved, name it with --checkpoint SRC"
        else:
            raise
        raise BringupError(replace(first, help=help), *others) from None


def _opened(manifest: dict[str, Any], checkpoint: str | PathLike[str] | None) -> Job:
    return open_job(
        manifest["model_argument"] or manifest["model"],
        _source(manifest["provenance"]) if checkpoint is None else checkpoint,
        config=manifest["config"] or None,
        adapter=manifest.get("adapter"),
        allow=manifest.get("allow"),
        dtype=manifest["dtype"],
        options=GraphOptions.from_dict(manifest["graph_options"]),
        access=Access(also=_also(manifest["provenance"]) if checkpoint is None else ()),
    )


def _also(provenance: dict[str, Any]) -> list[str]:
    """The further sources, in the form of `--also`."""
    return [f"{_source(words)}:{words['prefix']}" for words in provenance.get("also") or ()]


def _source(provenance: dict[str, Any]) -> str:
    """The source of the tensors: the same revision of a repository, the absolute path of a local file."""
    source: str = provenance["source"]
    if source == "dict":
        help = "name a checkpoint with the same tensors: --checkpoint SRC"
        raise fail("BU005", "the bundle was built from arrays in memory", help=help)
    if source.startswith("hf://") and "revision" in provenance:
        return f"{source.partition('@')[0]}@{provenance['revision']}"
    return source if re.match(r"\w+:", source) else provenance.get("path", source)
