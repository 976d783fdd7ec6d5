"""Opens an adapter of a job's model."""

from __future__ import annotations

import os

from bringup.adapters.dialects.dialect import Dialect
from bringup.adapters.lora import megatron
from bringup.adapters.lora.base import Base, base_of
from bringup.adapters.lora.files import LoraFiles, open_lora
from bringup.adapters.lora.load import Loaded, load
from bringup.adapters.lora.spelling import SPELLINGS
from bringup.compile.adapter_file import adapter_of
from bringup.compile.job import Job
from bringup.diagnostics import fail


def load_lora(job: Job, path: str | os.PathLike[str]) -> Loaded:
    """The factors of an adapter for the job's parameters, with all findings; headers are read.

    Arrays are float32. Names are those of the job's adapter, whatever format its own checkpoint
    has. Raises as `open_lora` does, BU118 for an adapter that is a function of headers, BU162 for a GGUF
    adapter of another family.
    """
    files = open_lora(path)
    return load(files, lora_base(job, files))


def lora_base(job: Job, files: LoraFiles) -> Base:
    """The base by the names in an adapter's files: the family's published ones, or llama.cpp's."""
    settings = job.graph.config
    if files.architecture:
        dialect = job.family.load("dialect")
        if not isinstance(dialect, Dialect) or files.architecture not in dialect.names:
            message = (
                f"`{files.path}` is an adapter of the architecture `{files.architecture}`, not of {job.family.name}"
            )
            raise fail("BU162", message, help="name the model that the adapter was trained on", file=str(files.path))
        return base_of(job.graph.signature(), dialect.table(settings))
    if files.spelling is SPELLINGS["megatron"]:
        own = adapter_of(job.family, None, job.adapter_file, settings)
        return base_of(job.graph.signature(), own, megatron.tables(job.graph.signature()))
    return published_base(job)


def published_base(job: Job) -> Base:
    """The base by the names in the job's adapter file, or else the family's published ones."""
    return base_of(job.graph.signature(), adapter_of(job.family, None, job.adapter_file, job.graph.config))
