"""Conversion in shards, which a later run reuses: shards written before a kill are not computed again.

Arrays are written to files in `.NAME.resume`, next to the final folder NAME. Its journal (`staging.py`) has a line for
every shard that is on disk: the digest of everything that determines its bytes (`convert_inputs.py`), and that of the
bytes themselves, which a later run reads back and compares. Results are computed ahead by threads, in the order of the
checkpoint's files, with a limit on the bytes in flight.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bringup.adapters.apply.byte_runs import SHORT, Group, union
from bringup.adapters.apply.materialise import THREADS, fill
from bringup.adapters.apply.range_reader import RangeReader
from bringup.adapters.checkpoints.arrays import from_bytes
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.planning.plan import Entry, Plan
from bringup.compile.check.value_stats import Soundness
from bringup.compile.convert.array_files import ArrayFile
from bringup.compile.convert.convert_inputs import SourceFiles
from bringup.compile.convert.staging import Staging
from bringup.spec import DTYPES, TensorInfo

if TYPE_CHECKING:
    import numpy as np

SHARD = 256 << 20  # minimum number of bytes written, except for the last one
IN_FLIGHT = 256 << 20  # bytes of tensors and arrays, or one group's if that has more
TOGETHER = 4 << 20  # bytes of tensors and arrays of small groups, which are read at once

_Result = tuple[int, "list[list[np.ndarray]]"]  # bytes read, and the arrays by group


@dataclass(frozen=True, slots=True)
class Shard:
    """Groups that are written one after the other; `key` is the digest of the inputs of their bytes."""

    key: str
    groups: tuple[Group, ...]


def shards_of(todo: Sequence[Group], plans: Sequence[Plan], inputs: str) -> list[Shard]:
    """Consecutive groups of at least SHARD bytes; `inputs` is the digest of plans, form and the sources' bytes."""
    shards: list[Shard] = []
    some: list[Group] = []
    size = 0
    for at, group in enumerate(todo):
        some.append(group)
        size += sum(plans[index].entries[name].declared.nbytes for index, name in group)
        if size >= SHARD or at == len(todo) - 1:
            names = json.dumps([inputs, len(shards), some])
            shards.append(Shard(hashlib.sha256(names.encode()).hexdigest(), tuple(some)))
            some, size = [], 0
    return shards


@dataclass(slots=True)
class Writer:
    """Writes the arrays of plans to their files, shard by shard. `nbytes` counts the bytes read of the checkpoint,
    `reused` the shards of an earlier run; `sound` has the arrays with values that no trained model has."""

    checkpoint: Checkpoint
    plans: Sequence[Plan]
    sources: SourceFiles
    nbytes: int = 0
    reused: int = 0
    sound: Soundness = field(default_factory=Soundness)

    def write(
        self,
        shards: Sequence[Shard],
        files: Sequence[ArrayFile],
        staging: Staging,
        advance: Callable[[float], None],
    ) -> None:
        """Writes all shards, except those of `staging` whose bytes match its journal.

        Raises BU207 if a file of the checkpoint has changed when a shard was read: the journal gets no such shard.
        """
        for count, shard in enumerate(shards, 1):
            if shard.key in staging.written:
                if self._digest(shard, files) == staging.written[shard.key]:
                    self.reused += 1
                    for index, name in (each for group in shard.groups for each in group):
                        entry = self.plans[index].entries[name]
                        self.sound.look(entry, _written(files[index], entry))
                        files[index].skip(name)
                    advance(count / len(shards))
                    continue
                del staging.written[shard.key]
            sha = hashlib.sha256()
            for group, arrays in self._computed(shard.groups):
                for (index, name), array in zip(group, arrays, strict=True):
                    self.sound.look(self.plans[index].entries[name], array)
                    sha.update(files[index].put(name, array))
            self.sources.check()
            for file in files:
                file.flush()
            staging.add(shard.key, sha.hexdigest())
            advance(count / len(shards))

    def _digest(self, shard: Shard, files: Sequence[ArrayFile]) -> str:
        sha = hashlib.sha256()
        for index, name in (each for group in shard.groups for each in group):
            for piece in files[index].stored(name):
                sha.update(piece)
        return sha.hexdigest()

    def _computed(self, groups: Sequence[Group]) -> Iterator[tuple[Group, list[np.ndarray]]]:
        """The arrays of each group, in order; threads compute the next ones up to the limit IN_FLIGHT."""
        waiting: deque[tuple[list[Group], int, Future[_Result]]] = deque()
        flying = 0
        with ThreadPoolExecutor(THREADS) as pool:
            try:
                for some, size in self._together(groups):
                    while waiting and flying + size > IN_FLIGHT:
                        flying -= waiting[0][1]
                        yield from self._taken(*waiting.popleft())
                    waiting.append((some, size, pool.submit(self._compute, some)))
                    flying += size
                while waiting:
                    yield from self._taken(*waiting.popleft())
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _together(self, groups: Sequence[Group]) -> Iterator[tuple[list[Group], int]]:
        """Adjacent small groups as one piece of work, which reads them at once; with its bytes."""
        some: list[Group] = []
        total = 0
        for group in groups:
            size = self._size(group)
            if some and (size > SHORT or total + size > TOGETHER):
                yield some, total
                some, total = [], 0
            some, total = [*some, group], total + size
            if size > SHORT:
                yield some, total
                some, total = [], 0
        if some:
            yield some, total

    def _taken(self, some: list[Group], size: int, result: Future[_Result]) -> Iterator[tuple[Group, list[np.ndarray]]]:
        read, arrays = result.result()
        self.nbytes += read
        yield from zip(some, arrays, strict=True)

    def _compute(self, some: Sequence[Group]) -> _Result:
        reader = RangeReader(self.checkpoint)
        entries = [[self.plans[index].entries[name] for index, name in group] for group in some]
        reader.want(union([entry for group in entries for entry in group]))
        arrays = [[fill(entry, reader) for entry in group] for group in entries]
        return reader.nbytes, arrays

    def _size(self, group: Group) -> int:
        """Bytes of a group's tensors and arrays."""
        entries = [self.plans[index].entries[name] for index, name in group]
        tensors = {info.name: info.nbytes for entry in entries for info in entry.tensors}
        return sum(tensors.values()) + sum(entry.declared.nbytes for entry in entries)


def _written(file: ArrayFile, entry: Entry) -> np.ndarray:
    """The array of an entry that an earlier run wrote."""
    declared = entry.declared
    shape, dtype = declared.storage
    info = TensorInfo(declared.name, dtype, shape, nbytes=DTYPES[dtype].nbytes(shape))
    return from_bytes(info, b"".join(file.stored(info.name)))


def by_layer(todo: Sequence[Group], plans: Sequence[Plan], layer: Callable[[str], int | None]) -> list[Group]:
    """Groups layer by layer, and within a layer in file order; those outside of layers are first."""

    def place(group: Group) -> int:
        found = [layer(name) for _, name in group]
        return min((each for each in found if each is not None), default=-1)

    return sorted(todo, key=place)
