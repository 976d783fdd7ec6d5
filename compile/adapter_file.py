"""The adapter of a job: a user's file, the table for another program's files, or the family's own.

Also the storage of quantised weights that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bringup import userfiles
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.config_places import IN_CONFIG, ConfigPlaces
from bringup.adapters.dialects.dialect import dialect_of
from bringup.adapters.planning.adapter import Adapter
from bringup.adapters.schemes.input_scales import WithInputScales
from bringup.adapters.schemes.registry import read_quantisation
from bringup.adapters.schemes.stored_source import read_stored, reads_stored
from bringup.adapters.trtllm import ranks as trtllm
from bringup.adapters.vllm import ranks as vllm
from bringup.diagnostics import Diagnostic, fail
from bringup.graphs.core.graph import Graph
from bringup.graphs.family import Family
from bringup.spec import TensorInfo


def adapter_of(family: Family, checkpoint: Checkpoint | None, file: str | None, settings: Any) -> Adapter:
    """The adapter of the user's file; for a GGUF file the dialect's; for files of ranks that of their format; else the
    family's.

    Raises BU140 for a family that this format does not support.
    """
    if file is not None:
        return _from_file(file, settings)
    if checkpoint and checkpoint.ranks:
        if checkpoint.ranks.format == vllm.NAME:
            path = family.load("graph").layer_path
            return vllm.reading(family.name, checkpoint.ranks.keys, path, family.load("adapter")(settings))
        return trtllm.reading(family.name, checkpoint.ranks.keys)
    dialect = dialect_of(family, checkpoint.gguf) if checkpoint and checkpoint.gguf else None
    return (dialect.table if dialect else family.load("adapter"))(settings)


def as_stored(
    adapter: Adapter, graph: Graph, headers: Mapping[str, TensorInfo], config: Mapping[str, Any], family: Family,
    places: ConfigPlaces = IN_CONFIG,
) -> tuple[Adapter, Sequence[Diagnostic]]:  # fmt: skip
    """The adapter for this checkpoint: its rules read matrices in the storage that the config states, in `places`."""
    signature = graph.signature()
    adapter = adapter.on(signature, headers)
    quantisation = read_quantisation(config, family.name, places)
    if quantisation.unread is not None and not reads_stored(adapter, quantisation.unread, signature):
        return adapter, ()
    if quantisation.stored is not None:
        stored = quantisation.stored
        if graph.options.activations == "fp8":
            stored = WithInputScales(stored)
        adapter = read_stored(adapter, stored, signature, headers)
    return adapter, quantisation.findings


def _from_file(path: str, settings: Any) -> Adapter:
    """The result of the function `adapter` of a user's file for a config. Raises BU004 if there is none."""
    if not Path(path).is_file():
        raise fail("BU004", f"no such adapter file: `{path}`")
    try:
        make = getattr(userfiles.run(Path(path)), "adapter", None)
    except SyntaxError as error:
        error.filename = error.filename or path  # Python omits it for a file that is not text
        raise
    help = "see `bringup explain adding-a-model`"
    if not callable(make) or not _accepts_one(make):
        raise fail("BU004", f"`{path}` defines no function `adapter(config)`", help=help)
    adapter = make(settings)
    if not isinstance(adapter, Adapter):
        raise fail("BU004", f"`adapter` of `{path}` returns a {type(adapter).__name__}, not an `Adapter`", help=help)
    return adapter


def _accepts_one(function: Callable[..., Any]) -> bool:
    import inspect  # takes 10 ms, only if a file is passed

    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True
