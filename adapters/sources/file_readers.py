"""The readers of bringup's own formats, except GGUF, and those that other packages register."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup import plugins
from bringup.adapters.checkpoints import zip_container
from bringup.adapters.checkpoints.files import entries, is_local, opened
from bringup.adapters.checkpoints.folder import Tensors, read_folder, read_index
from bringup.adapters.checkpoints.folder_layout import (
    SAFETENSORS,
    TORCH_INDEX,
    TORCH_SINGLE,
    TORCH_SUFFIXES,
    FolderLayout,
    is_training_file,
)
from bringup.adapters.checkpoints.numpy_files.arrays_on_disk import (
    END,
    Arrays,
    np_cache,
    read_np_cache,
    read_npy,
    read_npy_folder,
    read_npz,
)
from bringup.adapters.checkpoints.numpy_files.npy_header import MAGIC as NPY
from bringup.adapters.checkpoints.reader import Contents, Reader, read_loaded, read_mapped
from bringup.adapters.checkpoints.safetensors import MAX_HEADER, read_header
from bringup.adapters.checkpoints.stored import Stored, read_stored
from bringup.adapters.checkpoints.torch_files.torch_file import TorchFile, read_torch
from bringup.adapters.sources.rank_files import RankFilesReader
from bringup.adapters.sources.sharded_state import ShardedStateReader, refuse_ranks
from bringup.diagnostics import BringupError, Diagnostic, Severity
from bringup.grouping import some
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

_PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # PROTO and a protocol


class SafetensorsReader:
    """A file, an index, or a folder of files: see `checkpoints/folder.py`."""

    name = "safetensors"

    def detects(self, path: Path, head: bytes) -> bool:
        if not head:
            return any(name.endswith((".safetensors", SAFETENSORS.index)) for name in names_in(path))
        if path.name.endswith(".safetensors.index.json"):
            return True
        return len(head) > 8 and int.from_bytes(head[:8], "little") <= MAX_HEADER and head[8:9] == b"{"

    def open(self, path: Path) -> Contents:
        if path.is_dir():
            refuse_ranks(path)
            found = read_folder(path)
            return Contents(headers=found.headers, findings=[*found.findings, *_passed_over(path)])
        if path.name.endswith(".index.json"):
            found = read_index(path)
            return Contents(headers=found.headers, findings=found.findings)
        return Contents(headers=read_header(path))


class TorchReader:
    """A file of torch.save, an index of such files, or a folder of them. No pickle is executed: see `torch_files/`."""

    name = "torch"

    def detects(self, path: Path, head: bytes) -> bool:
        if not head:
            return any(name == TORCH_INDEX or _is_torch_name(name) for name in names_in(path))
        if path.name.endswith(".bin.index.json"):
            return True
        if head.startswith(zip_container.MAGIC):
            return path.suffix != ".whl" and not _holds_arrays(path)  # a wheel is an archive as well
        return head.startswith(_PICKLE)

    def open(self, path: Path) -> Contents:
        files: dict[Path, TorchFile] = {}

        def read(file: Path) -> Mapping[str, TensorInfo]:
            files[file] = read_torch(file)
            return files[file].headers

        layout = FolderLayout(TORCH_INDEX, TORCH_SINGLE, TORCH_SUFFIXES, read)
        if path.is_dir():
            found = read_folder(path, layout)
        elif path.name.endswith(".index.json"):
            found = read_index(path, layout)
        else:
            found = Tensors(dict(read(path)), [])
        return _torch_contents(found, files)


def _torch_contents(found: Tensors, files: Mapping[Path, TorchFile]) -> Contents:
    notes = [note for file, each in files.items() for note in _torch_notes(file, each)]
    shared = {file: frozenset(each.shared) for file, each in files.items()}

    def read(info: TensorInfo) -> np.ndarray:
        assert info.file is not None, "a header of a file"
        if stored := files[info.file].stored.get(info.name):
            return read_stored(info, stored)
        # views of one storage would share writes
        return read_loaded(info) if info.name in shared[info.file] else read_mapped(info)

    def load(info: TensorInfo) -> np.ndarray:
        assert info.file is not None, "a header of a file"
        stored = files[info.file].stored.get(info.name)
        return read_stored(info, stored) if stored else read_loaded(info)

    return Contents(headers=found.headers, read=read, load=load, findings=[*found.findings, *notes])


def _torch_notes(file: Path, found: TorchFile) -> Iterator[Diagnostic]:
    """BU220 for contents of the file other than tensors."""
    if found.dropped:
        yield Diagnostic(
            code="BU220",
            severity=Severity.NOTE,
            message=f"`{file}` also holds {some(found.dropped)}, which is not part of the state dict and is not read",
            help="nothing, if it is the state of a training run",
            file=str(file),
        )


class NumpyReader:
    """An `.npz` archive, an `.npy` file, a folder of `.npy` files, or the npcache of vLLM and SGLang."""

    name = "numpy"

    def detects(self, path: Path, head: bytes) -> bool:
        if _is_np_cache(path):
            return True
        if not head:
            names = names_in(path)
            return any(name.endswith(END) for name in names) or len(_archives(names)) == 1
        return head.startswith(NPY) or (head.startswith(zip_container.MAGIC) and _holds_arrays(path))

    def open(self, path: Path) -> Contents:
        if _is_np_cache(path) and (names := np_cache(path)):
            home = names.parent.parent if names.parent.name == "np" else names.parent
            return replace(_numpy_contents(read_np_cache(names)), folder=home)
        if not path.is_dir():
            with opened(path) as file:
                head = file.read(len(NPY))
            array = head == NPY or (path.name.endswith(END) and not head.startswith(zip_container.MAGIC))
            return _numpy_contents(read_npy(path) if array else read_npz(path))
        refuse_ranks(path)
        names = names_in(path)
        arrays = [name for name in names if name.endswith(END)]
        return _numpy_contents(read_npy_folder(path, arrays) if arrays else read_npz(path / _archives(names)[0]))


def _numpy_contents(found: Arrays) -> Contents:
    def read(info: TensorInfo) -> np.ndarray:
        stored: Stored | None = found.stored.get(info.name)
        return read_stored(info, stored) if stored else read_mapped(info)

    def load(info: TensorInfo) -> np.ndarray:
        stored: Stored | None = found.stored.get(info.name)
        return read_stored(info, stored) if stored else read_loaded(info)

    return Contents(headers=found.headers, read=read, load=load)


def _is_np_cache(path: Path) -> bool:
    return is_local(path) and np_cache(path) is not None


def _archives(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".npz")]


def _is_torch_name(name: str) -> bool:
    return name.endswith(TORCH_SUFFIXES) and not is_training_file(name)


def _passed_over(folder: Path) -> Iterator[Diagnostic]:
    """BU213 if the same weights are also there as torch files: safetensors are read, as in transformers."""
    other = [name for name in names_in(folder) if name.startswith("pytorch_model") and _is_torch_name(name)]
    if other:
        yield Diagnostic(
            code="BU213",
            severity=Severity.NOTE,
            message=f"`{folder}` has its weights as safetensors and as torch files ({some(other)}): the safetensors "
            "are read",
            help="to read a torch file, name it as the checkpoint",
            file=str(folder),
        )


def _holds_arrays(path: Path) -> bool:
    """Whether an archive is numpy's, by its members; one that cannot be read is torch's if its name suggests it."""
    try:
        members = zip_container.read_zip(path)
    except BringupError:
        return path.suffix == ".npz"
    return any(name.endswith(END) for name in members) and not any(name.endswith("data.pkl") for name in members)


def names_in(folder: Path) -> list[str]:
    """The names of a folder's entries, sorted; [] if it cannot be read."""
    try:
        return entries(folder)
    except OSError:
        return []


SAFETENSORS_READER, TORCH_READER, NUMPY_READER = SafetensorsReader(), TorchReader(), NumpyReader()
READERS: tuple[Reader, ...] = (RankFilesReader(), ShardedStateReader(), SAFETENSORS_READER, TORCH_READER, NUMPY_READER)


def registered_readers(failed: list[BringupError]) -> Iterator[Reader]:
    """The readers of formats that other packages register; a plugin that cannot be loaded is added to `failed`.

    Entry points of the same group that are functions serve sources of the form `NAME:…` instead.
    """
    for point in plugins.points(plugins.READERS):
        try:
            loaded: Any = plugins.load(point)
        except BringupError as error:
            failed.append(error)
            continue
        found: Any = loaded() if isinstance(loaded, type) else loaded
        if isinstance(found, Reader):
            yield found
