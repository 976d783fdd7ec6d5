"""The cache keys of a bundle, computed before anything is traced or read."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FunctionType

from bringup.adapters.checkpoints.folder import FILE
from bringup.compile.bundle.contents import plan_hash
from bringup.compile.cache.engine_files import BUNDLING, COMPUTING, name_of, tools
from bringup.compile.cache.file_identity import Unsettled, identities, identity_by_file
from bringup.compile.cache.processor import processor
from bringup.compile.cache.source_digest import body_of, digests, files_behind, files_of
from bringup.compile.cache.store import Inputs, key_of
from bringup.compile.cache.text_digests import digest
from bringup.compile.job import Job
from bringup.compile.program.export_options import Layout
from bringup.compile.program.stage_key import TRACED, bases, spelled, walk
from bringup.compile.targets.selection import Selection
from bringup.graphs.core.module import Module
from bringup.graphs.model_folders import file_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKeys:
    """The inputs of a bundle's weights and of the complete bundle.

    None if they are unknown: for a checkpoint in memory, or source code that changed since the process began.
    """

    weights: Inputs | None
    bundle: Inputs | None

    @classmethod
    def of(cls, job: Job, layout: Layout, selection: Selection) -> CacheKeys:
        try:
            weights = weights_inputs(job, layout.context)
            rest = _rest(job, layout, selection) if weights else None
        except (OSError, Unsettled):  # a file that does not exist, or was written just now
            weights = rest = None
        return cls(weights=weights, bundle=weights and rest and {**weights, **rest})

    @property
    def key(self) -> str:
        """Equal for bundles whose compiles have the same result; "" if the inputs are unknown."""
        return key_of(self.bundle) if self.bundle else ""


def weights_inputs(job: Job, context: int, files: Collection[Path] = ()) -> Inputs | None:
    """The inputs of the bytes of the weights: no traced code is among them. None if they are unknown.

    `context` is the length of the computed tables, in positions; `files` are further source files.
    Raises OSError for a file that does not exist, and Unsettled for a large one that was written just now.
    """
    kinds = {kind for _, module in walk(job.graph) for kind in bases(module)}
    bodies = {body_of(kind, name) for kind in kinds if issubclass(kind, Module) for name in TRACED}
    sources = digests(_files(job).union(files), {body for body in bodies if body})
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


def _rest(job: Job, layout: Layout, selection: Selection) -> Inputs | None:
    sources, settings = digests(_files(job) | selection.registered.files), selection.settings()
    if sources is None or settings is None:
        return None
    return {
        **sources,
        **settings,
        "dtype": job.graph.dtype,
        "options": repr(sorted(job.graph.options.non_default().items())),
        "layout": f"{list(layout.buckets)}, {layout.context} tokens, all logits: {layout.all_logits}, "
        f"hidden states {list(layout.aux_hidden)}, {layout.max_batch_size} sequences, {layout.sizes.blocks} blocks, "
        f"prompts of {layout.max_input_len}, {layout.draft_tokens} tokens of a draft",
        "config": digest(repr(sorted(job.config.items()))),
        "asked": repr((job.model, job.adapter_file, sorted(job.allow.items()))),
        "provenance": repr(sorted(job.checkpoint.provenance.items())),
        "tokenizer": digest("\n".join(_tokenizer(job.checkpoint.tokenizer))),
        "tools": tools(BUNDLING),
        "processor": processor(),
    }


def _files(job: Job) -> set[Path]:
    """The files that define the rules, the graph and the reader."""
    files = {Path(rule.site.file) for rule in job.adapter.rules}
    files = files.union(*map(files_of, {kind for _, module in walk(job.graph) for kind in bases(module)}))
    files |= {Path(file) for file in (job.model, job.adapter_file) if file and file.endswith(".py")}
    files |= {file for file in (file_of(job.family),) if file}
    for part in (*_parts(job), *_readers(job)):
        if not isinstance(part, str):
            files |= set(files_behind(part))
        elif file := getattr(sys.modules.get(part.partition(":")[0]), "__file__", None):
            files.add(Path(file))
    return files


def _parts(job: Job) -> list[object]:
    """The parts of the family that this job uses, whichever others the process has imported before."""
    family = job.family
    dialect = family.dialect if job.checkpoint.gguf else None
    adapter = None if dialect or job.adapter_file else family.adapter
    return [part for part in (family.graph, family.config, adapter, dialect) if part]


def _readers(job: Job) -> list[object]:
    return [reader for reader in (job.checkpoint.read, job.checkpoint.load) if reader]


def _is_on_disk(job: Job) -> bool:
    """Whether the checkpoint's bytes are in files, or are generated by this package from the inputs."""
    plain = all(isinstance(reader, FunctionType) and _is_plain(reader) for reader in _readers(job))
    if job.checkpoint.is_dummy:
        return plain
    return plain and all(isinstance(info.file, Path) for info in job.checkpoint.headers.values())


def _is_plain(reader: FunctionType) -> bool:
    """Whether a function is determined by its source code."""
    return not reader.__closure__ or bool(name_of(Path(reader.__code__.co_filename).resolve()))


def _headers(job: Job) -> Iterator[str]:
    """Every tensor with its position: file numbers instead of names, because two folders may have the same name."""
    headers = job.checkpoint.headers.values()
    found = identity_by_file({file for file, _ in groupby(map(FILE, headers)) if file})
    numbers = {identity: number for number, identity in enumerate(sorted(set(found.values())))}
    yield from numbers
    places = {file: numbers[identity] for file, identity in found.items()}
    for info in headers:
        yield f"{info.name} {info.dtype} {info.shape} {info.offset} {info.file and places[info.file]}"


def _tokenizer(file: Path | None) -> Iterator[str]:
    """Its file, and the files next to it with stop tokens and the chat template."""
    if file:
        sidecars = (path for end in ("json", "jinja") for path in file.parent.glob(f"*.{end}"))
        yield from identities({file, *sidecars})
