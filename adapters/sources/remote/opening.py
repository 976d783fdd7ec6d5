"""A checkpoint behind HTTP: its headers by ranges, or its files downloaded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from bringup.adapters.checkpoints.bounded_json import MAX_TEXT
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.folder import weight_map
from bringup.adapters.checkpoints.folder_layout import SAFETENSORS, TORCH_INDEX, TORCH_SINGLE, TORCH_SUFFIXES
from bringup.adapters.sources.remote.client import Client
from bringup.adapters.sources.remote.download import download
from bringup.adapters.sources.remote.remote_file import Dense, RemoteFile, RemoteFolder, folder_of, read_remote
from bringup.adapters.sources.remote.repository import Repository
from bringup.diagnostics import BringupError, fail

Open = Callable[[Path, str, dict[str, Any]], Checkpoint]
RANGED = (".safetensors", ".gguf", ".safetensors.index.json")  # formats whose headers are at the start
# Formats that list their tensors elsewhere: an archive's directory is at its end, and its members have headers.
ARCHIVES = (*TORCH_SUFFIXES, ".npz", ".npy", TORCH_INDEX)
LEGACY = b"\x80"  # first byte of torch files that are not archives: the complete file is read to find its tensors
INDEX_END = ".index.json"
SIDECARS = (
    "config.json", "hf_quant_config.json", "quant_config.json", "tokenizer.json", "tokenizer_config.json",
    "generation_config.json",
)  # fmt: skip


def open_url(src: str, open_path: Open, *, headers_only: bool, download_dir: Path | None, cache: Path) -> Checkpoint:
    """A file, an index or a folder at `https://…`; `http://` if the host is on a private network.

    Downloads are in `download_dir`, or else in a folder of `cache` that is named after the address.
    Raises BU035, BU913 to BU916.
    """
    parts = urlsplit(src)
    folder, file = folder_of(Client(src), src)
    words = unquote(parts.path).split("/")
    if not parts.hostname or parts.username or parts.query or parts.fragment or ".." in words or "/" in file:
        help = "write https://HOST/PATH of a file or a folder, without a user's name, a query or a fragment"
        raise fail("BU035", f"`{src}` is not an address of a checkpoint", help=help)
    if parts.scheme == "http" and not _is_inside(parts.hostname):
        raise fail("BU035", f"`{src}` would be read without encryption", help=f"write https{src[4:]}")
    if "." not in file or src.endswith("/"):
        folder, file = _probed(RemoteFolder(folder.client, src, [], complete=False), src), ""
    else:
        (folder / file).stat()  # its errors are reported before those of the files next to it
        folder.names = sorted({file, *(name for name in SIDECARS if _exists(folder / name))})
    place = download_dir or cache / parts.netloc.replace(":", "_") / unquote(parts.path).strip("/")
    return _opened(folder, file, folder.names, src, {}, open_path, headers_only=headers_only, place=place)


def open_repository(
    found: Repository, names: list[str], src: str, open_path: Open, *, headers_only: bool, place: Path
) -> Checkpoint:
    """These files of a model of a hub, in `place` once they are downloaded. Raises BU901, BU902, BU913 to BU916."""
    folder = RemoteFolder(found.folder.client, found.folder.url, names)
    one = next((name for name in names if name.endswith(".gguf")), "")
    facts = {"revision": found.commit}
    return _opened(folder, one, names, src, facts, open_path, headers_only=headers_only, place=place)


def _opened(
    folder: RemoteFolder, file: str, names: list[str], src: str, facts: dict[str, Any], open_path: Open, *,
    headers_only: bool, place: Path,
) -> Checkpoint:  # fmt: skip
    """The headers; or the files, if all are requested or the headers cannot be read by ranges."""
    weights = [file] if file else [name for name in names if not name.endswith(".json")]
    if headers_only and any(name.endswith(RANGED) for name in [*weights, *names]):
        chosen: Any = folder / file if file else folder
        opened = open_path(cast(Path, chosen), src, facts)
        return replace(opened, read=read_remote, load=read_remote, tokenizer=None)
    if headers_only and (found := _by_members(folder, file, names, src, facts, open_path)):
        return found
    whole = [*names]
    index = file if file.endswith(INDEX_END) else next((n for n in names if n.endswith(INDEX_END)), "")
    if index and not folder.complete:
        whole += sorted(set(weight_map(cast(Path, folder / index)).values()))
    download(folder, dict.fromkeys(whole), place)
    return open_path(place / file, src, {**facts, "url": folder.url})


def _by_members(
    folder: RemoteFolder, file: str, names: list[str], src: str, facts: dict[str, Any], open_path: Open
) -> Checkpoint | None:
    """A checkpoint of torch or numpy by the ranges of its directories and headers.

    None if complete files are needed: for torch's legacy layout, for so many small tensors that the ranges would take
    longer, and for a server that does not support ranges.
    """
    archives = [name for name in ([file] if file else names) if name.endswith(ARCHIVES)]
    index = next((name for name in archives if name.endswith(INDEX_END)), "")
    shards = sorted(set(weight_map(cast(Path, folder / index)).values())) if index else archives
    for name in shards:
        if (folder / name).read_range(0, 1) == LEGACY or not folder.client.ranged:
            return None
    if not shards:
        return None
    chosen: Any = folder / file if file else folder
    try:
        opened = open_path(cast(Path, chosen), src, facts)
    except Dense:
        return None
    for file_read in {info.file for info in opened.headers.values()}:
        if isinstance(cast("object", file_read), RemoteFile):
            cast("RemoteFile", file_read).forget()
    return replace(opened, read=opened.load or opened.read, tokenizer=None)


def _probed(folder: RemoteFolder, src: str) -> RemoteFolder:
    """The folder with those of the usual names of a model's files that exist. Raises BU914."""
    for name in (SAFETENSORS.index, SAFETENSORS.single, TORCH_INDEX, TORCH_SINGLE):
        if _exists(folder / name):
            folder.names = sorted({name, *(each for each in SIDECARS if _exists(folder / each))})
            return folder
    message = f"`{src}` has neither `{SAFETENSORS.index}` nor `{SAFETENSORS.single}`"
    raise fail("BU914", message, help="name the file itself, such as https://HOST/PATH/model.gguf")


def _exists(file: RemoteFile) -> bool:
    """Whether the server has it: reads its first bytes, or a complete JSON file."""
    try:
        file.stat()
    except BringupError as error:
        if error.findings[0].code == "BU914" and re.search(r"HTTP (403|404|410)", error.findings[0].message):
            return False
        raise
    return file.stat().st_size <= MAX_TEXT or not file.name.endswith(".json")


def _is_inside(host: str) -> bool:
    """Whether a host's name or address is in a private network, for which encryption is not required."""
    import socket

    from bringup.adapters.sources.remote.client import is_private

    try:
        return all(is_private(str(found[4][0])) for found in socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False
