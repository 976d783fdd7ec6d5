"""The cache keys of a bundle, computed before anything is traced or read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FunctionType

from bringup.adapters.checkpoints.folder import FILE
from bringup.compile.bundle.contents import plan_hash
from bringup.compile.cache.engine_files import BUNDLING, COMPUTING, name_of, tools
from bringup.compile.cache.file_identity import Unsettled, identities
from bringup.compile.cache.source_digest import body_of, digests, files_behind, files_of
from bringup.compile.cache.store import Inputs, key_of
from bringup.compile.job import Job
from bringup.compile.program.export_options import Layout
from bringup.compile.program.stage_key import TRACED, bases, spelled, walk
from bringup.compile.targets.iree_key import digest, processor
from bringup.graphs.core.module import Module


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKeys:
    """The inputs of a bundle's weights and of the whole of it.

    None where they cannot be told: for a checkpoint in memory, or source code that changed since the process began.
    """

    weights: Inputs | None
    bundle: Inputs | None

    @classmethod
    def of(cls, job: Job, layout: Layout, target: str) -> CacheKeys:
        try:
            weights = _weights(job, layout.context)
            rest = _rest(job, layout, target) if weights else None
        except (OSError, Unsettled):  # a file that is gone, or was written this moment
            weights = rest = None
        return cls(weights=weights, bundle=weights and rest and {**weights, **rest})

    @property
    def key(self) -> str:
        """Equal for bundles that would come out equal; "" where that cannot be told."""
        return key_of(self.bundle) if self.bundle else ""


def _weights(job: Job, context: int) -> Inputs | None:
    """What decides the bytes: nothing that is traced does."""
    kinds = {kind for _, module in walk(job.graph) for kind in bases(module)}
    bodies = {body_of(kind, name) for kind in kinds if issubclass(kind, Module) for name in TRACED}
    sources = digests(_files(job), {body for body in bodies if body})
    settings = spelled(job.graph.structural_key())
    if sources is None or settings is None or not _is_on_disk(job):
        return None
    return {
        "plan": plan_hash(job.plan),
        "checkpoint": digest("\n".join(_headers(job))),
        "seed": str(job.checkpoint.provenance.get("seed", "")),
        "tables": f"{context} positions, {digest(settings)}",
        "tools": tools(COMPUTING),
        **sources,
    }


def _rest(job: Job, layout: Layout, target: str) -> Inputs | None:
    sources = digests(_files(job))
    return sources and {
        **sources,
        "target": target,
        "dtype": job.graph.dtype,
        "layout": f"{list(layout.buckets)}, {layout.context} tokens, all logits: {layout.all_logits}, "
        f"hidden states {list(layout.aux_hidden)}",
        "config": digest(repr(sorted(job.config.items()))),
        "asked": repr((job.model, job.adapter_file, sorted(job.allow.items()))),
        "provenance": repr(sorted(job.checkpoint.provenance.items())),
        "tokenizer": digest("\n".join(_tokenizer(job.checkpoint.tokenizer))),
        "tools": tools(BUNDLING),
        "processor": processor(),
    }


def _files(job: Job) -> set[Path]:
    """Where the rules, the graph and the reader are written."""
    files = {Path(rule.site.file) for rule in job.adapter.rules}
    files = files.union(*map(files_of, {kind for _, module in walk(job.graph) for kind in bases(module)}))
    files |= {Path(file) for file in (job.model, job.adapter_file) if file and file.endswith(".py")}
    family = job.family
    loaded = [family.graph, family.config, family.adapter, family.dialect, *_readers(job)]
    for part in loaded:
        if not isinstance(part, str):
            files |= set(files_behind(part))
        elif file := getattr(sys.modules.get(part.partition(":")[0]), "__file__", None):
            files.add(Path(file))
    return files


def _readers(job: Job) -> list[object]:
    return [reader for reader in (job.checkpoint.read, job.checkpoint.load) if reader]


def _is_on_disk(job: Job) -> bool:
    """Whether the checkpoint's bytes are those of files, or made by this package from what the inputs say."""
    plain = all(isinstance(reader, FunctionType) and _is_plain(reader) for reader in _readers(job))
    if job.checkpoint.is_dummy:
        return plain
    return plain and all(info.file for info in job.checkpoint.headers.values())


def _is_plain(reader: FunctionType) -> bool:
    """Whether a function's source code is all there is to it."""
    return not reader.__closure__ or bool(name_of(Path(reader.__code__.co_filename).resolve()))


def _headers(job: Job) -> Iterator[str]:
    """Every tensor, and where its bytes are."""
    headers = job.checkpoint.headers.values()
    yield from identities({file for file, _ in groupby(map(FILE, headers)) if file})
    for info in headers:
        yield f"{info.name} {info.dtype} {info.shape} {info.offset} {info.file and info.file.name}"


def _tokenizer(file: Path | None) -> Iterator[str]:
    """Its file, and those beside it that say stop tokens and the chat template."""
    if file:
        sidecars = (path for end in ("json", "jinja") for path in file.parent.glob(f"*.{end}"))
        yield from identities({file, *sidecars})
