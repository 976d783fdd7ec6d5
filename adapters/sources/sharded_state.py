"""Folders in the sharded_state format of vLLM and SGLang: one or more files for each rank; see `vllm/ranks.py`.

The number of ranks is that of the files, unless a bringup.json describes the division. Every rank uses the same names,
so each tensor's name has its rank as a prefix, `rank1.lm_head.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from bringup.adapters.checkpoints.bounded_json import read_json
from bringup.adapters.checkpoints.files import entries, is_local
from bringup.adapters.checkpoints.reader import Contents, Ranks
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.adapters.sources.rank_files import MAX_RANKS, RANK, stated_ranks
from bringup.adapters.vllm.ranks import NAME, divided
from bringup.diagnostics import BringupError, Diagnostic, fail
from bringup.grouping import some
from bringup.shown import short, shown
from bringup.spec import TensorInfo

PART = re.compile(r"model-rank-(0|[1-9]\d{0,4})-part-(0|[1-9]\d{0,4})\.safetensors")
NOTE = "bringup.json"
AGAIN = "fetch bringup.json again, or convert the published checkpoint again"
NUMBERS = {"tp_size": 1, "ep_size": 1, "pp_size": 1, "vocab_multiple": 1, "redundant_experts": 0}  # and their minimum


def _are_integers(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in cast("list[object]", value))


def _are_rows(value: object) -> bool:
    return isinstance(value, list) and all(map(_are_integers, cast("list[object]", value)))


JOINED = ("trtllm", NAME)  # the forms whose ranks are read as one checkpoint
WHOLE = "name the checkpoint that was divided; folders of ranks are read in the forms trtllm and sharded_state"
LISTS = (
    ("stage_layers", _are_integers, "a list of integers"),
    ("physical_to_logical_map", _are_rows, "a list of lists of integers"),
)


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
        """Raises BU229 for a wrong division, and if most of its files are missing."""
        parts = sorted(
            (int(found[1]), int(found[2]), name) for name in entries(path) if (found := PART.fullmatch(name))
        )
        ranks = parts[-1][0] + 1
        keys = _mapping(path)
        findings = [*_absent(path, ranks if keys is None else _size(path, keys), parts)]
        headers: dict[str, TensorInfo] = {}
        for rank, _, name in parts:
            infos = {f"rank{rank}.{tensor}": info for tensor, info in read_header(path / name).items()}
            findings += _twice(path / name, infos, headers)
            for tensor, info in infos.items():
                headers.setdefault(tensor, info._replace(name=tensor))
        return Contents(headers=headers, ranks=Ranks(NAME, keys or {"tp_size": ranks}), findings=findings)


def refuse_ranks(folder: Path) -> None:
    """Raises BU229 for a folder of ranks in a form that no reader joins; its bringup.json has the form and the size."""
    form, size, _ = _division(folder)
    if size < 2:
        return
    message = f"`{folder}` has the files of {size:,} ranks in the form `{short(form)}`"
    if form == NAME:
        message, help = f"{message}, and other weights", "remove the .safetensors files that are not of a rank"
    else:
        message, help = f"{message}, whose parts are not joined", WHOLE
    raise fail("BU229", message, help=help, file=str(folder))


def refuse_rank(file: Path) -> None:
    """Raises BU229 for the file of one rank of several, whose tensors are parts.

    A bringup.json next to it has the form, the size and the rank; without one, the name of a file of TensorRT-LLM with
    its config.json, or of sharded_state with files of other ranks.
    """
    folder, name = file.parent, file.name
    form, size, files = _division(folder)
    entry = files.get(name)
    rank: object = cast("dict[str, Any]", entry).get("rank") if isinstance(entry, dict) else None
    if not files and (found := PART.fullmatch(name)):
        others = (PART.fullmatch(other) for other in entries(folder))
        form, size, rank = NAME, 1 + max(int(other[1]) for other in others if other), int(found[1])
    elif not files and (found := RANK.fullmatch(name)):
        form, size, rank = "trtllm", stated_ranks(folder), int(found[1])
    if size < 2 or type(rank) is not int:
        return
    message = f"`{file}` is rank {rank} of {size:,} in the form `{short(form)}`: its tensors are parts"
    help = f"name the folder, {folder}, which has all ranks" if form in JOINED else WHOLE
    raise fail("BU229", message, help=help, file=str(file))


def _division(folder: Path) -> tuple[str, int, Mapping[str, Any]]:
    """The form, the number of ranks and the files that a folder's bringup.json describes; 0 ranks without one."""
    try:
        note = read_json(folder / NOTE) if (folder / NOTE).is_file() else {}
    except (BringupError, ValueError):  # a file of another program: the tensors are read without it
        note = {}
    mapping, form, files = note.get("mapping"), note.get("to"), note.get("files")
    size = cast("dict[str, Any]", mapping).get("world_size") if isinstance(mapping, dict) else None
    if not (isinstance(form, str) and isinstance(size, int)):
        return "", 0, {}
    return form, size, cast("dict[str, Any]", files) if isinstance(files, dict) else {}


def _mapping(folder: Path) -> dict[str, Any] | None:
    """The division that a bringup.json describes. Raises BU229."""
    if not (folder / NOTE).is_file():
        return None
    try:
        found = read_json(folder / NOTE).get("mapping")
    except ValueError as error:
        raise fail("BU229", f"`{folder / NOTE}` is not readable: {error}", help=AGAIN, file=str(folder)) from None
    if not isinstance(found, dict):
        raise _bad(folder, "it is not an object")
    return cast("dict[str, Any]", found)


def _size(folder: Path, keys: dict[str, Any]) -> int:
    """The number of ranks. Raises BU229 for keys that do not describe a division."""
    for name, minimum in NUMBERS.items():
        value = keys.get(name, minimum)
        if type(value) is not int or value < minimum:
            raise _bad(folder, f"`{name}` is {shown(value)}, not an integer from {minimum}")
    for name, is_right, form in LISTS:
        value = keys.get(name, [])
        if not is_right(value):
            raise _bad(folder, f"`{name}` is {shown(value)}, not {form}")
    try:
        size = divided(keys).size
    except BringupError as error:
        raise _bad(folder, error.findings[0].message) from error
    if size > MAX_RANKS:
        raise _bad(folder, f"{size:,} ranks exceed the limit of {MAX_RANKS:,}")
    return size


def _absent(folder: Path, size: int, parts: list[tuple[int, int, str]]) -> Iterator[Diagnostic]:
    """BU229 for absent files: of a rank, or a part before a rank's last one. Raises it if most are, and for files of
    more ranks: the number is wrong then, and plans for so many ranks would only add consequences.
    """
    there = {(rank, part) for rank, part, _ in parts}
    last = {rank: part for rank, part, _ in parts}
    wanted = {(rank, part) for rank in range(size) for part in range(last.get(rank, 0) + 1)}
    missing, extra = sorted(wanted - there), sorted(there - wanted)
    if not (missing or extra):
        return
    names = some([f"model-rank-{rank}-part-{part}.safetensors" for rank, part in missing or extra])
    message = f"`{folder}` is divided among {size} ranks; it {'lacks' if missing else 'also has'} {names}"
    help = "fetch the files of every rank into the folder" if missing else "remove files of other divisions"
    finding = Diagnostic(code="BU229", message=message, help=help, file=str(folder), lost=bool(missing))
    if extra or len(missing) > len(there):
        raise BringupError(finding)
    yield finding


def _twice(file: Path, infos: Mapping[str, TensorInfo], known: Mapping[str, TensorInfo]) -> Iterator[Diagnostic]:
    """BU217 for tensors of a part that an earlier part of the same rank has too; the first is used."""
    if twice := [name for name in infos if name in known]:
        message = f"{some(twice)} of `{file}` also in `{known[twice[0]].file}`, another part of the same rank"
        help = "remove the file that is of another conversion"
        yield Diagnostic(code="BU217", message=message, help=help, file=str(file), sources=tuple(twice))


def _bad(folder: Path, why: str) -> BringupError:
    return fail("BU229", f"the `mapping` of `{folder / NOTE}` is wrong: {why}", help=AGAIN, file=str(folder))
