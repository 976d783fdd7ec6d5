"""The differences between two checkpoints, bundles, folders that `convert` wrote, or locks of plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.adapters.checkpoints.arrays import mapped, release_pages
from bringup.adapters.checkpoints.bounded_json import read_json
from bringup.adapters.checkpoints.safetensors import read_header
from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.compile.bundle import folder as bundles
from bringup.compile.convert.lock import differences, is_lock, read_lock
from bringup.compile.convert.presharded import presharded
from bringup.diagnostics import fail
from bringup.grouping import grouped
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np

# The keys of a bundle's manifest that affect its results. The others are times, paths and digests.
WORDS = (
    "target",
    "target_options",
    "model",
    "dtype",
    "max_seq_len",
    "max_input_len",
    "vocab_size",
    "weights",
    "plan",
    "aliases",
)
Read = Callable[[TensorInfo], "np.ndarray"]
CHUNK = 1 << 22  # elements that are compared at a time


@dataclass(frozen=True, slots=True)
class Difference:
    """One kind of difference: `what` differs (`shape`, `values`, `config`), for `names`, with a description."""

    what: str
    names: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One of the two: its tensors, if it has any, and keys of its config or manifest."""

    kind: str
    headers: Mapping[str, TensorInfo] = field(default_factory=dict[str, TensorInfo])
    read: Read | None = None
    words: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    lock: Mapping[str, Any] | None = None


def diff(one: str, other: str, *, values: bool = True) -> list[Difference]:
    """The differences; [] if the two are equal. With `values`, tensors are compared bit by bit.

    A source is a checkpoint, a bundle, a folder of `convert`, or a lock. Raises BU044 for a lock and another source,
    BU034, BU2xx and BU603 for a source that cannot be opened.
    """
    a, b = _open(one), _open(other)
    if (a.lock is None) != (b.lock is None):
        message = f"`{one}` is {a.kind} and `{other}` is {b.kind}"
        raise fail("BU044", message, help="compare two locks of plans, or two folders or files of weights")
    if a.lock is not None and b.lock is not None:
        return [Difference("plan", names, change) for names, change in differences(a.lock, b.lock)]
    return [*_words(a, b), *_headers(a, b), *(_values(a, b) if values else ())]


def _open(source: str) -> _Side:
    place = Path(source)
    if is_lock(place):
        return _Side(kind="the lock of a plan", lock=read_lock(place))
    if (place / bundles.MANIFEST).is_file():
        manifest = bundles.read_manifest(place)
        words = {"manifest": {key: manifest.get(key) for key in WORDS}, "config": manifest["config"]}
        return _Side(kind="a bundle", headers=read_header(place / bundles.WEIGHTS), read=_mapped, words=words)
    if found := presharded(source):
        infos, read = _files(place, found.files.values())
        words = {"mapping": found.note["mapping"] if found.note else found.mapping}
        words["config"] = read_json(place / "config.json")
        return _Side(kind="converted weights", headers=infos, read=read, words=words)
    opened = open_checkpoint(source)
    return _Side(kind="a checkpoint", headers=opened.headers, read=opened.read, words={"config": opened.config})


def _files(folder: Path, names: Iterable[str]) -> tuple[dict[str, TensorInfo], Read]:
    """The tensors of several files, with the file's name as prefix, each read by the reader of its format."""
    infos: dict[str, TensorInfo] = {}
    readers: dict[str, tuple[Read, TensorInfo]] = {}
    for file in names:
        opened = open_checkpoint(folder / file)
        for name, info in opened.headers.items():
            infos[f"{file}/{name}"] = info._replace(name=f"{file}/{name}")
            readers[f"{file}/{name}"] = opened.read, info

    def read(info: TensorInfo) -> np.ndarray:
        given, own = readers[info.name]
        return given(own)

    return infos, read


def _mapped(info: TensorInfo) -> np.ndarray:
    assert info.file is not None, "a header of a file"
    return mapped(info.file, info)


def _words(a: _Side, b: _Side) -> Iterator[Difference]:
    for part in dict.fromkeys((*a.words, *b.words)):
        one, other = a.words.get(part, {}), b.words.get(part, {})
        for key in dict.fromkeys((*one, *other)):
            if one.get(key) != other.get(key):
                yield Difference(
                    part, key, f"{one.get(key, 'absent')} in the first, {other.get(key, 'absent')} in the second"
                )


def _headers(a: _Side, b: _Side) -> Iterator[Difference]:
    """Tensors that only one has, and those of another shape or dtype; equal differences grouped."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys((*a.headers, *b.headers)):
        one, other = a.headers.get(name), b.headers.get(name)
        if one is None or other is None:
            found.setdefault(("tensor", f"only in the {'second' if one is None else 'first'}"), []).append(name)
            continue
        if one.shape != other.shape:
            found.setdefault(("shape", f"{list(one.shape)} → {list(other.shape)}"), []).append(name)
        if one.dtype != other.dtype:
            found.setdefault(("dtype", f"{one.dtype} → {other.dtype}"), []).append(name)
    for (what, text), names in found.items():
        yield Difference(what, ", ".join(grouped(names)), text)


def _values(a: _Side, b: _Side) -> Iterator[Difference]:
    """Tensors of equal shape and dtype whose bits differ, with the number of elements and the largest difference."""
    assert a.read is not None
    assert b.read is not None
    for name, one in a.headers.items():
        other = b.headers.get(name)
        if other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
            continue
        left, right = a.read(one), b.read(other)
        count, largest, unknown = _unequal(left.reshape(-1), right.reshape(-1), one.dtype)
        release_pages(left)
        release_pages(right)
        if count:
            by = f", by {largest:.3g} at most" if largest is not None else ""
            by += f", {unknown:,} of them by no number: one is not finite" if unknown else ""
            yield Difference("values", name, f"{count:,} of {left.size:,} differ{by}")


def _unequal(left: np.ndarray, right: np.ndarray, dtype: str) -> tuple[int, float | None, int]:
    """The number of elements that differ, the largest difference of finite ones, and the number of the others.

    The largest is None for integers, and if no finite elements differ.
    """
    import numpy as np

    count, largest, unknown = 0, None, 0
    numbers = DTYPES[dtype].kind == "float"
    for start in range(0, left.size, CHUNK):
        one, other = left[start : start + CHUNK], right[start : start + CHUNK]
        width = one.dtype.itemsize
        bits = (one.view(np.uint8).reshape(-1, width) != other.view(np.uint8).reshape(-1, width)).any(1)
        count += int(bits.sum())
        if numbers and bits.any():
            pairs = one[bits].astype(np.float64), other[bits].astype(np.float64)
            finite = np.isfinite(pairs[0]) & np.isfinite(pairs[1])
            unknown += int(finite.size - finite.sum())
            if finite.any():
                largest = max(largest or 0.0, float(np.abs(pairs[0][finite] - pairs[1][finite]).max()))
    return count, largest, unknown
