"""The files of an export and their tensors; the index, config.json and the tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from bringup.adapters.checkpoints.folder_layout import SAFETENSORS
from bringup.compile.convert.convert import NOTE, SCHEMA, write_json
from bringup.compile.job import Job
from bringup.spec import DTYPES, TensorInfo

# Besides config.json: the files of a tokenizer, and the settings of transformers' generation.
SIDECARS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
    "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result: the folder, its files of tensors, the number of tensors, and the reasons for omitted ones by name."""

    folder: Path
    files: tuple[str, ...]
    tensors: int
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])


def files_of(tensors: Sequence[TensorInfo]) -> dict[str, list[TensorInfo]]:
    """Tensors by the name of their file, each file in the order of its bytes."""
    found: dict[str, list[TensorInfo]] = {}
    for info in tensors:
        name = info.file.name if info.file else SAFETENSORS.single
        if not name.endswith(".safetensors"):  # pytorch_model-00001-of-00002.bin
            name = f"{name.rpartition('.')[0].replace('pytorch_model', 'model')}.safetensors"
        found.setdefault(name, []).append(info)
    return {name: sorted(infos, key=lambda info: info.offset) for name, infos in sorted(found.items())}


def write_words(
    job: Job,
    folder: Path,
    files: Mapping[str, Sequence[TensorInfo]],
    left_out: Mapping[str, str],
    *,
    own_config: bool = False,
) -> None:
    """Writes the index of several files, config.json, the tokenizer's files, and bringup.json.

    config.json is a copy of the checkpoint's, or, with `own_config`, the job's config.
    """
    named = job.checkpoint.provenance.get("path")
    source = Path(named) if named else None
    source = source.parent if source is not None and source.is_file() else source
    if len(files) > 1 or SAFETENSORS.single not in files:
        total = sum(DTYPES[info.dtype].nbytes(info.shape) for infos in files.values() for info in infos)
        old = source / SAFETENSORS.index if source is not None else None
        metadata: dict[str, Any] = {}
        if old is not None and old.is_file():
            metadata = json.loads(old.read_text("utf-8")).get("metadata") or {}
        places = {info.name: file for file, infos in files.items() for info in infos}
        write_json(
            folder / SAFETENSORS.index,
            {"metadata": metadata | {"total_size": total}, "weight_map": dict(sorted(places.items()))},
        )
    if source is not None and (source / "config.json").is_file() and not own_config:
        shutil.copyfile(source / "config.json", folder / "config.json")
    else:
        write_json(folder / "config.json", job.config)
    for name in SIDECARS if source is not None else ():
        if (cast(Path, source) / name).is_file():
            shutil.copyfile(cast(Path, source) / name, folder / name)
    note = {"schema": SCHEMA, "to": "published", "model": job.family.name, "source": job.checkpoint.source}
    note["weights"] = "dummy" if job.checkpoint.is_dummy else "checkpoint"
    write_json(folder / NOTE, {**note, "left_out": dict(left_out)})
