"""A folder of safetensors files as one set of tensors.

With `model.safetensors.index.json` the index says which files there are and which of them a tensor is in;
other files (such as `consolidated.safetensors`, the same weights again) are not read. Without one,
`model.safetensors` is read alone, as transformers does; failing that, every `*.safetensors` file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from bringup.adapters.readers.files import refuse_lfs_pointer, some
from bringup.adapters.readers.jsonfile import read_json
from bringup.adapters.readers.safetensors import read_header
from bringup.diagnostics import BringupError, fail
from bringup.shown import short, shown
from bringup.spec import TensorInfo

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FILE = attrgetter("file")
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.safetensors)")


def read_folder(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of a folder that has safetensors files. Raises BU20x, BU21x."""
    for name, read in ((INDEX, read_index), (SINGLE, read_header)):
        if os.path.lexists(folder / name):  # also what turns out to be no file: nothing else may take its place
            return read(folder / name)
    files = sorted(folder.glob("*.safetensors"))
    _check_numbering(folder, {file.name for file in files})
    found: dict[str, TensorInfo] = {}
    for file in files:
        infos = read_header(file)
        twice = [name for name in infos if name in found]
        if twice:
            other = found[twice[0]].file
            raise fail(
                "BU217",
                f"{some(twice)} of `{file}` also in `{other}`, and no {INDEX} says which counts",
                help=f"name one file as the checkpoint, or put the model's {INDEX} beside them",
                file=str(file),
                sources=tuple(twice),
            )
        found |= infos
    return found


def read_index(path: Path) -> dict[str, TensorInfo]:
    """The tensors of the shards that an index names. Raises BU214, BU215, BU216, and what a header raises."""
    owners = _weight_map(path)
    folder, shards = path.parent, sorted(set(owners.values()))
    there = set(os.listdir(folder))  # noqa: PTH208  names are all that is wanted
    missing = [name for name in shards if name not in there or not (folder / name).exists()]
    if missing:
        single = folder / SINGLE
        whole = f"; or, if the index is left over, remove it or name `{single}`" if single.is_file() else ""
        raise fail(
            "BU215",
            f"{len(missing)} of {len(shards)} files that `{path}` names are missing: {some(missing, 50)}",
            help=f"fetch them into `{folder}`{whole}",
            file=str(path),
        )
    _check_numbering(folder, set(shards))  # an index that was written anew over what was left
    read = {shard: read_header(folder / shard) for shard in shards}
    found: dict[str, TensorInfo] = {}
    for infos in read.values():
        found |= infos
    named = chain.from_iterable(repeat(shard, len(infos)) for shard, infos in read.items())
    if len(found) == len(owners) and [*map(owners.get, found)] == [*named]:
        return found  # as it should be: all are where the index says, and no others
    return _sorted_out(path, owners, read)


def _sorted_out(
    path: Path, owners: Mapping[str, str], read: Mapping[str, dict[str, TensorInfo]]
) -> dict[str, TensorInfo]:
    """Each tensor from the shard that the index names; those that it does not name as well."""
    found: dict[str, TensorInfo] = {}
    for shard, infos in read.items():
        for name, info in infos.items():
            if owners.get(name, shard) != shard:
                continue
            if name in found:
                first = found[name].file
                raise _disagrees(path, [name], f"in `{first}` and in `{shard}`, and the index names neither")
            found[name] = info
    if absent := [name for name in owners if name not in found]:
        shard = owners[absent[0]]
        those = [name for name in absent if owners[name] == shard]
        raise _disagrees(path, those, f"not in `{shard}`, where the index says")
    return found


def _weight_map(path: Path) -> dict[str, str]:
    """{tensor: file name} of an index."""
    refuse_lfs_pointer(path)
    try:
        raw: Any = read_json(path, bulk=True).get("weight_map")
    except ValueError as error:
        raise _bad_index(path, str(error)) from None
    if not isinstance(raw, dict) or not raw:
        raise _bad_index(path, "`weight_map` is not an object of file names by tensor")
    owners = cast("dict[str, str]", raw)
    if set(map(type, owners.values())) != {str}:
        name, shard = next(item for item in owners.items() if type(item[1]) is not str)
        raise _bad_index(path, f"`weight_map` says that `{short(name)}` is in {shown(shard)}, no file name")
    for shard in dict.fromkeys(owners.values()):
        if not shard or shard == "." or ".." in shard or any(char in shard for char in "/\\\0"):
            raise _bad_index(path, f"`weight_map` names {shown(shard)}, which is not a file of this folder")
    return owners


def _check_numbering(folder: Path, present: set[str]) -> None:
    """Raises BU215 when `x-00001-of-00003.safetensors` has brothers that are not there."""
    for stem, total, end in {match.group(1, 3, 4) for name in present if (match := SHARD.fullmatch(name))}:
        if int(total) > 10_000:
            continue
        wanted = [f"{stem}-{number:05}-of-{total}{end}" for number in range(1, int(total) + 1)]
        missing = [name for name in wanted if name not in present]
        if missing:
            raise fail(
                "BU215",
                f"{len(missing)} of {len(wanted)} numbered files are missing in `{folder}`: {some(missing, 50)}",
                help="fetch them into the folder",
                file=str(folder),
            )


def _bad_index(path: Path, why: str) -> BringupError:
    help = "fetch the index again"
    return fail("BU214", f"`{path}` is not a valid index: {why}", help=help, file=str(path))


def _disagrees(path: Path, names: list[str], where: str) -> BringupError:
    return fail(
        "BU216",
        f"`{path}` and the files disagree: {some(names)} {'is' if len(names) == 1 else 'are'} {where}",
        help="the index and the files come from different revisions; fetch both again",
        file=str(path),
        sources=tuple(names),
    )
