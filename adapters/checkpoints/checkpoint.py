"""A published checkpoint: headers first, bytes on demand. Every reader returns one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.adapters.checkpoints.config_places import IN_CONFIG, ConfigPlaces
from bringup.adapters.checkpoints.file_states import FileState, refuse_changed
from bringup.diagnostics import Diagnostic
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from bringup.adapters.checkpoints.gguf_config import Hyperparameters
    from bringup.adapters.checkpoints.reader import Ranks


def _never(info: TensorInfo) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """`headers` are read from file headers alone; `read` returns a tensor's array.

    `read(info)` returns an array of `info.shape` in numpy's or ml_dtypes' dtype (uint8 [nbytes] for GGUF block types),
    mapped copy on write if the format allows: writable, but no byte is read before it is accessed and the file never
    changes. Each call returns memory that no earlier call returned. `load`, if a reader has it, returns the same in
    memory of its own: a file that shrinks meanwhile is then an error, and not the end of the process. `in_place(info)`
    is whether that array is the bytes of `info.file` from `info.offset` on: then a part of them can be read separately.
    Tensors of one checkpoint may differ in this, because it may have two sources. `config` has the keys of config.json,
    also if they come from GGUF metadata, which `gguf` has unchanged; `places` has the files that state them.
    `ranks` describes files of ranks. `files` are the states of its files when their headers were read. `findings` are
    the problems of its files, which the check of a job reports; their `sources` are tensors that are missing or
    ambiguous because of them.
    """

    source: str
    format: str  # "safetensors", "gguf", "dict" or "dummy"
    headers: Mapping[str, TensorInfo]
    config: Mapping[str, Any]
    places: ConfigPlaces = IN_CONFIG
    read: Callable[[TensorInfo], np.ndarray]
    load: Callable[[TensorInfo], np.ndarray] | None = None
    in_place: Callable[[TensorInfo], bool] = _never
    tokenizer: Path | None = None  # tokenizer.json, or the GGUF file that contains one
    gguf: Hyperparameters | None = None
    ranks: Ranks | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[Path, FileState | None] = field(default_factory=dict[Path, "FileState | None"])
    findings: Sequence[Diagnostic] = ()

    @property
    def is_dummy(self) -> bool:
        return self.format == "dummy"

    def loaded(self, info: TensorInfo) -> np.ndarray:
        """A tensor's array in memory of its own, if the reader has `load`; otherwise as `read` returns it."""
        return (self.load or self.read)(info)

    def refuse_changed(self) -> None:
        """Raises BU207 if a file was written to, replaced or removed since its header was read.

        Whoever reads values calls it when they are read: otherwise offsets of one file are applied to another.
        """
        refuse_changed(self.files)
