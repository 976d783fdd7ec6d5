"""A folder of safetensors or torch files as one set of tensors.

With `model.safetensors.index.json` the index determines the files, and the file of each tensor; other files (such as
`consolidated.safetensors`, the same weights again) are not read. Without an index, `model.safetensors` is read alone,
as in transformers; without that, every `*.safetensors` file. transformers 5.23 reads `model.safetensors` also if there
is an index (`modeling_utils._get_resolved_checkpoint_files`), so a folder with both is rejected. Torch files have the
same conventions by other names (`folder_layout.py`).

If some files are wrong, the others are read nevertheless: the errors are findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

from bringup.adapters.checkpoints.bounded_json import read_json
from bringup.adapters.checkpoints.files import entries, is_local, refuse_lfs_pointer
from bringup.adapters.checkpoints.folder_layout import ADAPTER, ADAPTER_CONFIG, SAFETENSORS, FolderLayout
from bringup.diagnostics import BringupError, Diagnostic, Severity, fail
from bringup.grouping import some
from bringup.shown import short, shown
from bringup.spec import TensorInfo

FILE = attrgetter("file")
NO_FILE = re.compile(r"^\.?\Z|\.\.|[/\\\0]")  # names outside of the folder, or of no file
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")


class Tensors(NamedTuple):
    """The tensors of a folder, and findings on its files: their `sources` are tensors that are missing."""

    headers: dict[str, TensorInfo]
    findings: list[Diagnostic]


def read_folder(folder: Path, layout: FolderLayout = SAFETENSORS) -> Tensors:
    """Every tensor of a folder with files of a layout. Raises BU20x, BU21x if no tensor can be read."""
    index, single = folder / layout.index, folder / layout.single
    found: Tensors | None = None
    broken: list[Diagnostic] = []
    there = entries(folder)
    if layout.index in there:  # even if it is not a readable file: nothing may replace it
        try:
            owners = weight_map(index)
        except BringupError as error:
            if not _weights(folder, layout):
                raise
            broken += error.findings
        else:
            found = _by_index(index, owners, layout)
    if found is None and layout.single in there:
        found = Tensors(dict(layout.read(single)), [])
    found = found or _unindexed(folder, layout)
    more = [*_two_sets(folder, found, layout), *_peft(folder, layout)]
    return Tensors(found.headers, [*broken, *found.findings, *more])


def _weights(folder: Path, layout: FolderLayout) -> list[Path]:
    """The files of a layout; that of a LoRA adapter only if there are no others."""
    files = [folder / name for name in entries(folder) if layout.holds(name)]
    return [file for file in files if file.stem != ADAPTER] or files


def _unindexed(folder: Path, layout: FolderLayout) -> Tensors:
    """The tensors of every file. For one that is in several files, the first is used."""
    files = _weights(folder, layout)
    read, findings = _headers(files, {}, layout)
    findings += _lost_numbers(folder, {file.name for file in files})
    found: dict[str, TensorInfo] = {}
    for file, infos in read.items():
        twice = [name for name in infos if name in found]
        if twice:
            findings.append(
                Diagnostic(
                    code="BU217",
                    message=f"{some(twice)} of `{file}` also in `{found[twice[0]].file}`, and no {layout.index} "
                    "states which one is used",
                    help=f"name one file as the checkpoint, or put the model's {layout.index} next to them",
                    file=str(file),
                    sources=tuple(twice),
                )
            )
        found |= {name: info for name, info in infos.items() if name not in found}
    return Tensors(found, findings)


def _headers(
    files: Iterable[Path], owned: Mapping[str, list[str]], layout: FolderLayout
) -> tuple[dict[Path, Mapping[str, TensorInfo]], list[Diagnostic]]:
    """The headers of files, and findings on those that cannot be read. Raises the first if none can.

    `owned` are the tensors that an index lists for a file, by its name.
    """
    read: dict[Path, Mapping[str, TensorInfo]] = {}
    findings: list[Diagnostic] = []
    for file in files:
        try:
            read[file] = layout.read(file)
        except BringupError as error:
            findings += (_of_file(finding, owned.get(file.name, [])) for finding in error.findings)
    if findings and not read:
        raise BringupError(*findings)
    return read, findings


def _of_file(finding: Diagnostic, absent: Iterable[str]) -> Diagnostic:
    from dataclasses import replace

    return replace(finding, sources=tuple(absent), lost=True)


def read_index(path: Path, layout: FolderLayout = SAFETENSORS) -> Tensors:
    """The tensors of the shards that an index names.

    Raises BU214 for an invalid index, and the errors of headers if none can be read.
    """
    return _by_index(path, weight_map(path), layout)


def _by_index(path: Path, owners: Mapping[str, str], layout: FolderLayout) -> Tensors:
    folder, shards = path.parent, sorted(set(owners.values()))
    there = set(entries(folder) if is_local(folder) else shards)  # names may be too long for the system
    missing = [name for name in shards if name not in there or not (folder / name).exists()]
    findings = [_missing_files(path, owners, missing, len(shards), layout)] if missing else []
    if len(missing) == len(shards):
        raise BringupError(*findings)
    absent = set(missing)
    owned: dict[str, list[str]] = {}
    for name, shard in owners.items():
        owned.setdefault(shard, []).append(name)
    read, unreadable = _headers((folder / shard for shard in shards if shard not in absent), owned, layout)
    # an index that was written again over an older set of files
    findings += [*unreadable, *_lost_numbers(folder, set(shards))]
    found: dict[str, TensorInfo] = {}
    for infos in read.values():
        found |= infos
    named = chain.from_iterable(repeat(file.name, len(infos)) for file, infos in read.items())
    if len(found) == len(owners) and [*map(owners.get, found)] == [*named]:
        return Tensors(found, findings)  # all tensors are in the files that the index lists, and no others
    excused = {name for finding in findings for name in finding.sources}
    found, wrong = _sorted_out(path, {n: s for n, s in owners.items() if n not in excused}, read)
    return Tensors(found, findings + wrong)


def _sorted_out(
    path: Path, owners: Mapping[str, str], read: Mapping[Path, Mapping[str, TensorInfo]]
) -> tuple[dict[str, TensorInfo], list[Diagnostic]]:
    """Each tensor from the shard that the index lists, else from the first that has it; and all disagreements."""
    holders: dict[str, list[Path]] = {}
    for file, infos in read.items():
        for name in infos:
            holders.setdefault(name, []).append(file)
    found: dict[str, TensorInfo] = {}
    wrong: dict[str, list[tuple[str, str]]] = {}  # names, each with its location
    for name, files in holders.items():
        owner = owners.get(name, "")
        file = next((file for file in files if file.name == owner), files[0])
        found[name] = read[file][name]
        if len(files) > 1:
            where = "in " + " and in ".join(f"`{file.name}`" for file in files)
            each = ("twice", where) if owner else ("unnamed twice", f"{where}, and the index names neither")
        elif owner == file.name:
            continue
        elif owner:
            each = "elsewhere", f"not in `{owner}`, contrary to the index, but in `{file.name}`"
        else:
            each = "unnamed", "in the files that it names"
        wrong.setdefault(each[0], []).append((name, each[1]))
    for name, shard in owners.items():
        if name not in holders:
            wrong.setdefault("nowhere", []).append((name, f"not in `{shard}`, contrary to the index"))
    return found, [_disagrees(path, kind, names) for kind, names in wrong.items()]


def weight_map(path: Path) -> dict[str, str]:
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
        raise _bad_index(path, f"`weight_map` maps `{short(name)}` to {shown(shard)}, which is not a file name")
    for shard in dict.fromkeys(owners.values()):
        if NO_FILE.search(shard):
            raise _bad_index(path, f"`weight_map` names {shown(shard)}, which is not a file of this folder")
    return owners


def _lost_numbers(folder: Path, present: set[str]) -> list[Diagnostic]:
    """BU215 if some of the numbered files `x-00001-of-00003.safetensors` are missing."""
    findings: list[Diagnostic] = []
    for stem, total, end in sorted({match.group(1, 3, 4) for name in present if (match := SHARD.fullmatch(name))}):
        if int(total) > 10_000:
            continue
        wanted = [f"{stem}-{number:05}-of-{total}{end}" for number in range(1, int(total) + 1)]
        missing = [name for name in wanted if name not in present]
        if missing:
            message = f"{len(missing)} of {len(wanted)} numbered files are missing in `{folder}`: {some(missing, 50)}"
            help = "fetch them into the folder"
            findings.append(Diagnostic(code="BU215", message=message, help=help, file=str(folder), lost=True))
    return findings


def _missing_files(
    path: Path, owners: Mapping[str, str], missing: list[str], count: int, layout: FolderLayout
) -> Diagnostic:
    folder, absent = path.parent, set(missing)
    single = folder / layout.single
    whole = f"; or, if the index is left over, remove it or name `{single}`" if single.is_file() else ""
    return Diagnostic(
        code="BU215",
        message=f"{len(missing)} of {count} files that `{path}` names are missing: {some(missing, 50)}",
        help=f"fetch them into `{folder}`{whole}",
        file=str(path),
        sources=tuple(name for name, shard in owners.items() if shard in absent),
    )


def _two_sets(folder: Path, found: Tensors, layout: FolderLayout) -> list[Diagnostic]:
    """BU228 for `model.safetensors` next to an index that does not list it."""
    single, index = folder / layout.single, folder / layout.index
    if not (single.is_file() and index.is_file()) or any(info.file == single for info in found.headers.values()):
        return []
    return [
        Diagnostic(
            code="BU228",
            message=f"`{folder}` has two sets of weights: `{layout.single}`, and the files that `{layout.index}` names",
            help="transformers reads the first, other tools the second: remove one, or name the right one, "
            f"`{single}` or `{index}`",
            file=str(folder),
        )
    ]


def _peft(folder: Path, layout: FolderLayout) -> list[Diagnostic]:
    """BU132 for an adapter of peft next to the model's own weights."""
    adapter = next((f for end in ("safetensors", "bin") if (f := folder / f"{ADAPTER}.{end}").is_file()), None)
    if adapter is None or not (folder / ADAPTER_CONFIG).is_file() or adapter in _weights(folder, layout):
        return []
    return [
        Diagnostic(
            code="BU132",
            message=f"`{adapter}` contains a peft adapter, which is not applied",
            help="merge it into the model (peft: `merge_and_unload()`) and save that; to ignore it, move the "
            "adapter to another folder",
            file=str(adapter),
        )
    ]


def _bad_index(path: Path, why: str) -> BringupError:
    help = "fetch the index again"
    return fail("BU214", f"`{path}` is not a valid index: {why}", help=help, file=str(path))


def _disagrees(path: Path, kind: str, places: list[tuple[str, str]]) -> Diagnostic:
    """One finding for all tensors with the same kind of disagreement; it names the location of the first."""
    names, where = tuple(name for name, _ in places), places[0][1]
    verb = "is" if len(names) == 1 else "are"
    if kind == "unnamed":
        return Diagnostic(
            code="BU216",
            severity=Severity.WARNING,
            message=f"`{path}` does not name {some(names)}, which {verb} {where}",
            help="tools that go by the index do not load what it leaves out: write it again (transformers' "
            "save_pretrained does)",
            file=str(path),
        )
    again = "the index and the files come from different revisions; fetch both again"
    return Diagnostic(
        code="BU217" if kind == "twice" else "BU216",
        message=f"`{path}` and the files disagree: {some(names)} {verb} {where}",
        help="tools differ in which one they load: remove the others" if kind == "twice" else again,
        file=str(path),
        sources=names,
    )
