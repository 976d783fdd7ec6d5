"""Repositories of hubs: their files, the files that belong to a model, and the URL of each.

Hugging Face: https://huggingface.co/docs/hub/api, `GET /api/models/NAME/revision/REVISION` and
`/NAME/resolve/REVISION/FILE`, at HF_ENDPOINT. ModelScope: `GET /api/v1/models/NAME/repo/files` and
`/models/NAME/resolve/REVISION/FILE`, as the package modelscope requests them, at MODELSCOPE_DOMAIN.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from bringup.adapters.checkpoints.bounded_json import MAX_TEXT, strict_json
from bringup.adapters.checkpoints.folder_layout import TORCH_SUFFIXES, is_training_file
from bringup.adapters.sources.remote.client import Client, refused
from bringup.adapters.sources.remote.remote_file import RemoteFolder
from bringup.diagnostics import did_you_mean, fail
from bringup.grouping import some

SMALL = ("*.json", "chat_template.jinja")  # next to the weights; those in folders are for other programs: onnx/, …


class Repository(NamedTuple):
    """A model's repository at one revision, and its commit."""

    folder: RemoteFolder
    commit: str


def hub_repository(name: str, revision: str) -> Repository:
    """A model of the Hugging Face hub. Raises BU913 to BU916."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    client = Client(endpoint, _token())
    url = f"{endpoint}/api/models/{quote(name)}/revision/{quote(revision, safe='')}"
    answer = _json(client, url)
    commit = str(answer.get("sha") or revision)
    names = _names(url, answer.get("siblings"), "rfilename")
    return Repository(RemoteFolder(client, f"{endpoint}/{quote(name)}/resolve/{quote(commit, safe='')}", names), commit)


def modelscope_repository(name: str, revision: str) -> Repository:
    """A model of ModelScope. Raises BU913 to BU916."""
    domain = os.environ.get("MODELSCOPE_DOMAIN", "www.modelscope.cn").rstrip("/")
    endpoint = domain if "://" in domain else f"https://{domain}"
    client = Client(endpoint, os.environ.get("MODELSCOPE_API_TOKEN", ""))
    place = quote(revision, safe="")
    url = f"{endpoint}/api/v1/models/{quote(name)}/repo/files?Revision={place}&Recursive=true"
    found: Any = _json(client, url).get("Data")
    listed: Any = cast("dict[str, Any]", found).get("Files") if isinstance(found, dict) else None
    names = _names(url, listed, "Path")
    return Repository(RemoteFolder(client, f"{endpoint}/models/{quote(name)}/resolve/{place}", names), revision)


def chosen_files(source: str, revision: str, file: str, there: Sequence[str]) -> list[str]:
    """The files of a repository that are read: safetensors, or else torch files, or else one GGUF file.

    `source` is SCHEME://ORG/NAME; `file` one of its GGUF files, or a pattern such as `*Q4_K_M*.gguf`, or "". Files in
    folders (onnx/, original/) belong to other programs, and the state of a training run is not weights. Raises BU218,
    BU912.
    """
    top = [path for path in there if "/" not in path and not is_training_file(path)]
    small = [path for path in top if any(fnmatch(path, pattern) for pattern in SMALL)]
    for suffixes in () if file else ((".safetensors",), TORCH_SUFFIXES):
        if weights := [path for path in top if path.endswith(suffixes)]:
            return [*small, *weights]
    ggufs = [path for path in there if path.endswith(".gguf")]
    matching = [path for path in ggufs if fnmatch(path, file)] if file else ggufs
    name, at = source.partition("://")[2], "" if revision in ("main", "master") else f"@{revision}"
    if file and not matching:
        message = f"`{name}` at `{revision}` has no file `{file}`" + (f"; it has {some(ggufs, 20)}" if ggufs else "")
        guess = min(ggufs, key=_depth, default=None)
        help = f"name one of its files: {source}/{guess}{at}" if guess else "check the name and the revision"
        raise fail("BU912", message, help=did_you_mean(file, ggufs) or help)
    if len(matching) > 1:
        help = f"name one of them, such as {source}/{min(matching, key=_depth)}{at}"
        raise fail("BU218", f"`{source}` has {len(matching)} GGUF files: {some(matching, 40)}", help=help)
    return [*small, *matching]


def _depth(path: str) -> int:
    """The number of folders around a file: those in the repository's own folder are its usual ones."""
    return path.count("/")


def _json(client: Client, url: str) -> Mapping[str, Any]:
    try:
        return strict_json(client.read_small(url, MAX_TEXT))
    except ValueError as error:
        raise refused(url, f"its answer is not readable: {error}") from None


def _names(url: str, listed: Any, key: str) -> list[str]:
    entries = cast("list[Any]", listed) if isinstance(listed, list) else []
    words = [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
    names = [str(word.get(key)) for word in words if isinstance(word.get(key), str) and word.get("Type") != "tree"]
    if not names:
        raise refused(url, "its answer lists no files")
    return [name for name in names if ".." not in name.split("/") and not name.startswith("/") and "\\" not in name]


def _token() -> str:
    """HF_TOKEN, or else the token that `hf auth login` stored: huggingface_hub.constants."""
    if token := os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return token.strip()
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return ""
    home = os.environ.get("HF_HOME") or os.path.join(  # noqa: PTH118  an environment variable's text
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    place = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        return place.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
