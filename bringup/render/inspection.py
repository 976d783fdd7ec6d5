"""The contents of a checkpoint: as columns for people, and as JSON for programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bringup.render.json_text import json_text
from bringup.render.visible import brief, visible
from bringup.render.words import count, plural, size, table
from bringup.shown import shown

if TYPE_CHECKING:
    from bringup.compile.report.inspection import Group, Inspection


def inspection_text(found: Inspection) -> str:
    """Sections with an empty line between them; every text of the checkpoint is escaped."""
    return "\n\n".join(_sections(found)) + "\n"


def _sections(found: Inspection) -> Iterator[str]:
    files = f", {plural(len(found.files), 'file')}" if found.files else ""
    yield f"{visible(found.source)}: {found.format}{files}"
    rows = [("tensors", "count", "shape", "dtype", "bytes"), *map(_row, found.groups)]
    totals = (f"{name} {size(nbytes)}" for name, (_, nbytes) in _by_dtype(found.groups).items())
    number, elements, nbytes = _sum(found.groups)
    yield f"{table(rows)}\nin all: {number:,} tensors, {count(elements)} elements, {size(nbytes)} ({', '.join(totals)})"
    yield _served(found)
    yield from _words(f"config keys that {found.family} reads", found.known)
    if found.neutral:
        yield f"config keys that never affect the result: {', '.join(map(visible, found.neutral))}"
    yield from _words("config keys that are not read" if found.family else "config keys", found.unread)
    if found.refused:
        rows = [(each.code, visible(each.message)) for each in found.refused]
        yield f"values that the {found.family} graph rejects\n{_indented(rows)}"
    for title, pairs in (("tied", found.tied), ("quantisation", found.quantized)):
        if pairs:
            yield f"{title}\n{_indented([(visible(key), visible(value)) for key, value in pairs])}"
    if found.tokenizer:
        yield f"tokenizer\n{_indented([(visible(n), size(nbytes) if nbytes else '') for n, nbytes in found.tokenizer])}"


def _row(group: Group) -> tuple[str, ...]:
    return visible(brief(group.name)), f"{group.count:,}", str(list(group.shape)), group.dtype, size(group.nbytes)


def _served(found: Inspection) -> str:
    names = ", ".join(map(visible, found.architectures))
    if found.family:
        return f"architecture: {names}, supported by the family {found.family}"
    lines = [f"architecture: {names}; no family supports it" if names else "architecture: the config names none"]
    for name, left in found.near:
        unread = f"leaves unread: {', '.join(map(visible, left))}" if left else "reads every key"
        lines.append(f"  {name} {unread}")
    if names and found.format != "gguf":  # `init` reads config.json
        lines.append(f"  draft a new family: bringup init --checkpoint {visible(shlex.quote(found.source))}")
    return "\n".join(lines)


def _words(title: str, words: Mapping[str, Any]) -> Iterator[str]:
    if words:
        rows = [(visible(key), visible(shown(value))) for key, value in words.items()]
        yield f"{title}\n{_indented(rows)}"


def _indented(rows: list[tuple[str, str]]) -> str:
    return table([("", *row) for row in rows])


def _sum(groups: list[Group]) -> tuple[int, int, int]:
    """Tensors, elements, bytes."""
    return (
        sum(group.count for group in groups),
        sum(group.elements for group in groups),
        sum(group.nbytes for group in groups),
    )


def _by_dtype(groups: list[Group]) -> dict[str, tuple[int, int]]:
    """Tensors and bytes of each dtype."""
    found: dict[str, tuple[int, int]] = {}
    for group in groups:
        number, nbytes = found.get(group.dtype, (0, 0))
        found[group.dtype] = (number + group.count, nbytes + group.nbytes)
    return found


def inspection_json(found: Inspection) -> str:
    """One object; shapes are lists, sizes are bytes."""
    number, elements, nbytes = _sum(found.groups)
    groups = [
        {"name": each.name, "count": each.count, "shape": each.shape, "dtype": each.dtype, "bytes": each.nbytes}
        for each in found.groups
    ]
    dtypes = {name: {"count": n, "bytes": total} for name, (n, total) in _by_dtype(found.groups).items()}
    config: dict[str, Any] = {"known": found.known, "neutral": found.neutral, "unread": found.unread}
    plain = {
        "source": found.source,
        "format": found.format,
        "files": found.files,
        "architectures": found.architectures,
        "family": found.family,
        "near": [{"family": name, "unread": left} for name, left in found.near],
        "tensors": {"count": number, "elements": elements, "bytes": nbytes, "dtypes": dtypes, "groups": groups},
        "tied": dict(found.tied),
        "config": config | {"refused": [each.as_json() for each in found.refused]},
        "quantization": dict(found.quantized),
        "tokenizer": dict(found.tokenizer),
        "findings": [each.as_json() for each in found.findings],
    }
    return json_text(plain)
