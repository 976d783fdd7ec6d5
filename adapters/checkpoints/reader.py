"""The protocol of readers of a format, and the contents that they find in a file or folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from bringup.diagnostics import Diagnostic
from bringup.spec import TensorInfo as TensorInfo

if TYPE_CHECKING:
    import numpy as np

HEAD = 64  # bytes of a file that a reader gets


def read_mapped(info: TensorInfo) -> np.ndarray:
    """A plain tensor of a file, mapped copy on write. Raises BU207."""
    from bringup.adapters.checkpoints.arrays import mapped

    assert info.file is not None, "a header of a file"
    return mapped(info.file, info)


def read_loaded(info: TensorInfo) -> np.ndarray:
    """A plain tensor of a file, in memory of its own. Raises BU207."""
    from bringup.adapters.checkpoints.arrays import loaded

    assert info.file is not None, "a header of a file"
    return loaded(info.file, info)


@dataclass(frozen=True, slots=True)
class Ranks:
    """How files of ranks are divided: the format, `trtllm` or `sharded_state`, and its keys.

    The name of each tensor has its rank as a prefix: `rank1.lm_head.weight`. An adapter joins the parts.
    """

    format: str
    keys: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The tensors of a file or folder, by name, from its headers alone; and the functions that read them.

    `read` returns an array of `info.shape`, writable, in memory that no earlier call returned; `load` the same in
    memory of its own. The defaults read `info.nbytes` bytes at `info.offset` of `info.file`: a reader whose tensors are
    all `plain` needs no functions of its own. `config` are the keys of config.json, if the format contains them.
    `ranks` describes files of ranks. Without `config`, config.json and tokenizer.json are read from `folder`.
    `findings` are problems of the files that do not prevent reading the rest.
    """

    headers: Mapping[str, TensorInfo]
    read: Callable[[TensorInfo], np.ndarray] = read_mapped
    load: Callable[[TensorInfo], np.ndarray] | None = read_loaded
    config: Mapping[str, Any] | None = None
    ranks: Ranks | None = None
    folder: Path | None = None
    findings: Sequence[Diagnostic] = field(default_factory=tuple[Diagnostic, ...])


@runtime_checkable
class Reader(Protocol):
    """Reads one format. A package registers one by an entry point of the group `bringup.readers`.

    `name` is the checkpoint's `format`.
    """

    @property
    def name(self) -> str: ...

    def detects(self, path: Path, head: bytes) -> bool:
        """Whether `path` is in this format, by its content: `head` has the first 64 bytes of a file.

        For a folder `head` is empty. Raises nothing.
        """
        ...

    def open(self, path: Path) -> Contents:
        """Reads the headers of a file or folder that `detects` accepts, and no tensor.

        Raises BringupError for an invalid file or folder (`fail`).
        """
        ...
