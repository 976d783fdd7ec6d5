"""What a bundle is made from, known before anything is traced or read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bringup import __version__
from bringup.compile.bundle import versions
from bringup.compile.cache.modules import digest, processor
from bringup.compile.cache.sources import body_of, digests, file_of, source_of
from bringup.compile.cache.stages import TRACING, spelled, walk
from bringup.compile.cache.store import Inputs, key_of
from bringup.compile.contents import plan_hash
from bringup.compile.job import Job
from bringup.compile.stages import Layout
from bringup.graphs.module import Module

# The modules that write weights, and those that make the rest of a bundle.
_WRITING = ("bringup.compile.contents", "bringup.compile.weights_file")
_COMPILING = ("bringup.compile.pipeline", "bringup.compile.lowering", "bringup.compile.lower.iree", *TRACING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The inputs of a bundle's weights and of the whole of it.

    None where they cannot be told: for a checkpoint in memory, or source code that changed since the process began.
    """

    weights: Inputs | None
    bundle: Inputs | None

    @classmethod
    def of(cls, job: Job, layout: Layout, target: str) -> Recipe:
        weights = _weights(job, layout.context)
        return cls(weights=weights, bundle=weights and {**weights, **_rest(job, layout, target)})

    @property
    def key(self) -> str:
        """Equal for bundles that would come out equal; "" where that cannot be told."""
        return key_of(self.bundle) if self.bundle else ""


def _weights(job: Job, context: int) -> Inputs | None:
    """What decides the bytes: no forward does."""
    kinds = {kind for _, module in walk(job.graph) for kind in type(module).__mro__ if issubclass(kind, Module)}
    traced = {body_of(kind, name) for kind in kinds for name in ("forward", "prologue", "epilogue")}
    sources = digests(_files(job), traced)
    settings = spelled(job.graph.likeness())
    if job.checkpoint.format == "dict" or sources is None or settings is None:
        return None
    return {
        "plan": plan_hash(job.plan),
        "checkpoint": digest("\n".join(_headers(job))),
        "seed": str(job.checkpoint.provenance.get("seed", "")),
        "tables": f"{context} positions, {digest(settings)}",
        **sources,
        **{f"source {name}": source_of(name) for name in _WRITING},
    }


def _rest(job: Job, layout: Layout, target: str) -> Inputs:
    return {
        **(digests(_files(job)) or {}),
        "bringup": __version__,
        "target": target,
        "dtype": job.graph.dtype,
        "layout": f"{list(layout.buckets)}, {layout.context} tokens, all logits: {layout.all_logits}, "
        f"hidden states {list(layout.aux_hidden)}",
        "config": digest(repr(sorted(job.config.items()))),
        "asked": repr((job.model, job.adapter_file, sorted(job.allow.items()))),
        "provenance": repr(sorted(job.checkpoint.provenance.items())),
        "tokenizer": digest("\n".join(_tokenizer(job.checkpoint.tokenizer))),
        "tools": ", ".join(f"{name} {number}" for name, number in versions()),
        "processor": processor(),
        **{f"source {name}": source_of(name) for name in _COMPILING},
    }


def _files(job: Job) -> set[Path]:
    """Where the rules and the graph are written."""
    return {Path(rule.site.file) for rule in job.adapter.rules} | {
        file_of(type(module)) for _, module in walk(job.graph)
    }


def _headers(job: Job) -> Iterator[str]:
    """Every tensor, and where its bytes are."""
    files = {info.file for info in job.checkpoint.headers.values() if info.file}
    yield from sorted(map(_identity, files))
    for info in job.checkpoint.headers.values():
        yield f"{info.name} {info.dtype} {info.shape} {info.offset} {info.file and info.file.name}"


def _tokenizer(file: Path | None) -> Iterator[str]:
    """Its file, and those beside it that say stop tokens and the chat template."""
    if file:
        beside = (path for end in ("json", "jinja") for path in file.parent.glob(f"*.{end}"))
        yield from sorted(map(_identity, {file, *beside}))


def _identity(file: Path) -> str:
    """What changes when a file does; its bytes are not read."""
    stat = file.stat()
    return f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
