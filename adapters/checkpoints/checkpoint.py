"""A published checkpoint: headers first, bytes on demand. Every reader gives one of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.diagnostics import Diagnostic
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from bringup.adapters.checkpoints.gguf_config import Hyperparameters


def _never(info: TensorInfo) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """`headers` come from file headers alone; `read` gives a tensor's array.

    `read(info)` gives an array of `info.shape` in numpy's or ml_dtypes' dtype (uint8 [nbytes] for GGUF block types),
    mapped copy on write where the format allows: writable, yet no byte is read before it is touched and the file
    never changes. Each call gives memory that no earlier call gave. `load`, where a reader has one, gives the same in
    memory of its own: a file that shrinks meanwhile is an error then, and not the end of the process. `in_place(info)`
    is whether that array is the bytes of `info.file` from `info.offset` on: then a part of them can be read by itself.
    Tensors of one checkpoint may differ, for it may have two sources. `config` holds
    config.json's words, also when they come from GGUF metadata, which `gguf` has as the file says it, or from
    TensorRT-LLM's config.json, which is `trtllm`. `findings` are
    what is wrong with its files, which the check of a job reports; their `sources` are tensors that are absent or in
    doubt for it.
    """

    source: str
    format: str  # "safetensors", "gguf", "dict" or "dummy"
    headers: Mapping[str, TensorInfo]
    config: Mapping[str, Any]
    read: Callable[[TensorInfo], np.ndarray]
    load: Callable[[TensorInfo], np.ndarray] | None = None
    in_place: Callable[[TensorInfo], bool] = _never
    tokenizer: Path | None = None  # tokenizer.json, or the GGUF file that holds one
    gguf: Hyperparameters | None = None
    trtllm: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    findings: Sequence[Diagnostic] = ()

    @property
    def is_dummy(self) -> bool:
        return self.format == "dummy"
