"""Folders in the sharded_state format of vLLM and SGLang: one or more files for each rank; see `vllm/ranks.py`.

The number of ranks is that of the files, unless a bringup.json describes the division. Every rank uses the same names,
so each tensor's name has its rank as a prefix, `rank1.lm_head.weight`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from bringup.adapters.checkpoints.bounded_json import read_json
from bringup.adapters.checkpoints.files import entries, is_local, some
from bringup.adapters.checkpoints.reader import Contents, Ranks
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.adapters.vllm.ranks import NAME, divided
from bringup.diagnostics import BringupError, Diagnostic, fail
from bringup.shown import short
from bringup.spec import TensorInfo

PART = re.compile(r"model-rank-(0|[1-9]\d{0,4})-part-(0|[1-9]\d{0,4})\.safetensors")
NOTE = "bringup.json"


class ShardedStateReader:
    """A folder of such files: all ranks as one checkpoint."""

    name = NAME

    def detects(self, path: Path, head: bytes) -> bool:
        if head or not is_local(path):
            return False
        try:
            files = [name for name in entries(path) if name.endswith(".safetensors")]
        except OSError:
            return False
        return bool(files) and all(map(PART.fullmatch, files))

    def open(self, path: Path) -> Contents:
        parts = sorted(
            (int(found[1]), int(found[2]), name) for name in entries(path) if (found := PART.fullmatch(name))
        )
        keys = _mapping(path) or {"tp_size": parts[-1][0] + 1}
        size = _size(path, keys)
        headers: dict[str, TensorInfo] = {}
        for rank, _, name in parts:
            for tensor, info in read_header(path / name).items():
                headers[f"rank{rank}.{tensor}"] = info._replace(name=f"rank{rank}.{tensor}")
        return Contents(headers=headers, ranks=Ranks(NAME, keys), findings=_findings(path, size, parts))


def refuse_ranks(folder: Path) -> None:
    """Raises BU229 for a folder of ranks in a form that no reader joins; its bringup.json has the form and the size."""
    try:
        note = read_json(folder / NOTE) if (folder / NOTE).is_file() else {}
    except BringupError:  # a file of another program: the tensors are read without it
        return
    mapping, form = note.get("mapping"), note.get("to")
    size = cast("dict[str, Any]", mapping).get("world_size") if isinstance(mapping, dict) else None
    if isinstance(form, str) and isinstance(size, int) and size > 1:
        message = f"`{folder}` has the files of {size:,} ranks in the form `{short(form)}`, whose parts are not joined"
        help = "name the checkpoint that was divided; folders of ranks are read in the forms trtllm and sharded_state"
        raise fail("BU229", message, help=help, file=str(folder))


def _mapping(folder: Path) -> dict[str, Any] | None:
    """The division that a bringup.json describes. Raises BU229."""
    if not (folder / NOTE).is_file():
        return None
    found = read_json(folder / NOTE).get("mapping")
    if not isinstance(found, dict):
        raise _bad(folder, "it is not an object")
    return cast("dict[str, Any]", found)


def _size(folder: Path, keys: dict[str, Any]) -> int:
    """The number of ranks. Raises BU229 for keys that do not describe a division."""
    try:
        return divided(keys).size
    except (BringupError, TypeError, ValueError) as error:
        raise _bad(folder, str(error).partition("\n")[0]) from error


def _findings(folder: Path, size: int, parts: list[tuple[int, int, str]]) -> list[Diagnostic]:
    """BU229 for absent files: of a rank, or a part before a rank's last one."""
    there = {(rank, part) for rank, part, _ in parts}
    last = {rank: part for rank, part, _ in parts}
    wanted = {(rank, part) for rank in range(size) for part in range(last.get(rank, 0) + 1)}
    missing, extra = sorted(wanted - there), sorted(there - wanted)
    if not (missing or extra):
        return []
    names = some([f"model-rank-{rank}-part-{part}.safetensors" for rank, part in missing or extra])
    message = f"`{folder}` is divided among {size} ranks; it {'lacks' if missing else 'also has'} {names}"
    help = "fetch the files of every rank into the folder" if missing else "remove files of other divisions"
    return [Diagnostic(code="BU229", message=message, help=help, file=str(folder), lost=bool(missing))]


def _bad(folder: Path, why: str) -> BringupError:
    help = "fetch bringup.json again, or convert the published checkpoint again"
    return fail("BU229", f"the `mapping` of `{folder / NOTE}` is wrong: {why}", help=help, file=str(folder))
