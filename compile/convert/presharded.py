"""Folders whose weights are already divided among ranks: those of `convert`, and TensorRT-LLM's checkpoints."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bringup.adapters.apply.parallel import Parallel
from bringup.adapters.checkpoints.bounded_json import read_json
from bringup.adapters.vllm import ranks as vllm
from bringup.compile.bundle import folder as bundles
from bringup.compile.convert.convert import NOTE, Converted, mapping_of, write_json
from bringup.diagnostics import fail
from bringup.progress import Progress
from bringup.shown import shown
from bringup.system.os_errors import need_room

SIZES = ("tp_size", "ep_size", "pp_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Presharded:
    """A folder with a file for each rank. `mapping` has the numbers of ranks, `note` is its bringup.json if any."""

    folder: Path
    to: str
    mapping: Mapping[str, int]
    files: Mapping[int, str]
    note: Mapping[str, Any] | None

    def is_copied(self, to: str, parallel: Parallel) -> bool:
        """Whether the request is for these files, or they can only be copied: those of other programs can also be
        converted."""
        is_same = to == self.to and self.mapping == _sizes(mapping_of(parallel))
        return is_same or self.to not in ("trtllm", vllm.NAME)


def presharded(source: str | os.PathLike[str] | None) -> Presharded | None:
    """The folder of ranks that a source names; None for any other source. Raises BU2xx for JSON that cannot be read."""
    folder = Path(source) if source else None
    if folder is None or not folder.is_dir():
        return None
    try:
        return _ranks_of(folder)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # the folder may be invalid
        why = error if isinstance(error, ValueError) else "`mapping` or `files` has another form"
        help = "convert the published checkpoint"
        raise fail("BU142", f"`{folder}` does not state how it is divided: {why}", help=help) from error


def _ranks_of(folder: Path) -> Presharded | None:
    if (folder / NOTE).is_file():
        note = read_json(folder / NOTE)
        if "mapping" not in note or "files" not in note:
            return None
        files = {_integer(words["rank"]): str(name) for name, words in note["files"].items()}
        if outside := [name for name in files.values() if Path(name).name != name or not (folder / name).is_file()]:
            raise ValueError(f"it has no file `{outside[0]}`")
        return Presharded(folder=folder, to=note["to"], mapping=_sizes(note["mapping"]), files=files, note=note)
    ranks = {int(found[1]): name for name in os.listdir(folder) if (found := _RANK.fullmatch(name))}  # noqa: PTH208
    config = read_json(folder / "config.json") if ranks and (folder / "config.json").is_file() else {}
    if not isinstance(config.get("mapping"), dict):
        return None
    return Presharded(folder=folder, to="trtllm", mapping=_sizes(config["mapping"]), files=ranks, note=None)


_RANK = re.compile(r"rank(\d+)\.safetensors")


def _sizes(words: Any) -> dict[str, int]:
    found = cast("dict[str, Any]", words)
    found = {"ep_size": found.get("moe_ep_size", 1)} | found  # TensorRT-LLM's key
    return {name: _integer(found.get(name, 1)) for name in SIZES}


def _integer(value: object) -> int:
    """Raises ValueError for anything else."""
    if type(value) is not int:
        raise ValueError(f"{shown(value)} is not an integer")
    return value


def copy_presharded(
    found: Presharded,
    out: Path,
    *,
    to: str,
    parallel: Parallel,
    rank: int | None,
    form: str,
    dtype: str,
    target: str,
    unusable: Collection[str],
    force: bool,
    progress: Progress,
) -> Converted:
    """Copies the files of one rank or of all.

    `unusable` are options that were passed and that a copy cannot apply. Raises BU142 for these, if the folder is
    divided or written otherwise than requested, and for a missing file of a rank.
    """
    ours = mapping_of(vllm.stored_as(parallel) if to == vllm.NAME else parallel)
    _check(found, to, ours, {"--dtype": (dtype, "dtype"), "--target": (target, "target")}, unusable)
    numbers = range(parallel.size) if rank is None else [rank]
    if absent := [number for number in numbers if number not in found.files]:
        raise fail("BU142", f"`{found.folder}` has no file of rank {absent[0]}", help="name another --rank")
    chosen = [found.files[number] for number in numbers]
    if other := [name for name in chosen if not name.endswith(f".{form}")]:
        help = f"name the --format of `{other[0]}`, or convert the published checkpoint"
        raise fail("BU142", f"`{found.folder}` has `{other[0]}`, which is not a .{form} file", help=help)
    need_room(out.parent, sum((found.folder / name).stat().st_size for name in chosen))
    read = [found.folder / name for name in chosen]
    with (
        bundles.writing(out, force=force, progress=progress, note=NOTE, inputs=read) as folder,
        progress.stage("Writing") as stage,
    ):
        for name in (*chosen, "config.json", "tokenizer.json"):
            if (found.folder / name).is_file():
                shutil.copyfile(found.folder / name, folder / name)
        note = found.note or {"schema": 1, "to": to, "mapping": {name: ours[name] for name in SIZES}, "files": {}}
        files = {name: words for name, words in note["files"].items() if name in chosen}
        files = files or {name: {"rank": number} for name, number in zip(chosen, numbers, strict=True)}
        write_json(folder / NOTE, {**note, "files": files})
        written = tuple((folder / name).stat().st_size for name in chosen)
        stage.done(f"{len(chosen)} files, copied: they are divided as requested")
    return Converted(folder=out, files=tuple(chosen), read=sum(written), written=written)


def _check(
    found: Presharded,
    to: str,
    ours: Mapping[str, Any],
    words: Mapping[str, tuple[str, str]],
    unusable: Collection[str],
) -> None:
    """Raises BU142 unless a copy is what was requested. `words` are options: their value, and their key in the note.

    A value that the folder does not state, as in TensorRT-LLM's, is the default.
    """
    sizes = {name: ours[name] for name in SIZES}
    if found.to != to or found.mapping != sizes:
        numbers = ", ".join(f"{name.removesuffix('_size')} {size}" for name, size in found.mapping.items())
        help = f"request --to {found.to} with these numbers of ranks, or convert the published checkpoint"
        raise fail("BU142", f"`{found.folder}` is written for {found.to} and {numbers}", help=help)
    help = "leave the option out, or convert the published checkpoint"
    note = found.note or {}
    theirs = mapping_of(Parallel(tp=ours["tp_size"], ep=ours["ep_size"], pp=ours["pp_size"])) | dict(
        note.get("mapping", {})
    )
    for name, value in ours.items():
        if theirs[name] != value:
            message = f"`{found.folder}` is divided with `{name}` {theirs[name]}, and {value} is requested"
            raise fail(
                "BU142", message, help="request the division that the folder has, or convert the published checkpoint"
            )
    for option, (value, name) in words.items():
        written = note.get(name)
        if option == "--target" and to != "layout":
            continue
        if value not in ("auto", written):
            message = f"`{found.folder}` is written for {name} {written or 'unknown'}, and {value} is requested"
            raise fail("BU142", message, help=help)
    if unusable:
        message = f"`{found.folder}` is divided already and would be copied, which {', '.join(unusable)} cannot change"
        raise fail("BU142", message, help=help)
