"""What ranks exchange: every rank is a thread, and all of them make the same exchanges in the same order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")


class UnmatchedError(Exception):
    """A rank waits for an exchange that another rank does not make: that one has ended, or is at another module."""


@dataclass(slots=True)
class _Round:
    """One exchange: the tensor of each rank and its place, and the number of ranks that have read them."""

    tensors: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    places: dict[int, str] = field(default_factory=dict[int, str])
    readers: int = 0


class Exchange:
    """Exchanges between `count` ranks of a stage."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._changed = threading.Condition()
        self._start()

    def _start(self) -> None:
        self._rounds: dict[int, _Round] = {}  # by number, until all ranks have read them
        self._done = [0] * self.count
        self._ended = set[int]()

    def gather(self, rank: int, place: str, tensor: Tensor, group: Sequence[int]) -> list[Tensor]:
        """The tensors of the ranks of a group, in its order. All ranks take part, each in a group of its own.

        Raises UnmatchedError unless all ranks are at the same `place`.
        """
        with self._changed:
            number = self._done[rank]
            self._done[rank] += 1
            this = self._rounds.setdefault(number, _Round())
            this.tensors[rank] = tensor
            this.places[rank] = place
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(this.tensors) == self.count or bool(self._ended - this.tensors.keys()))
            elsewhere = [other for other in range(self.count) if this.places.get(other) != place]
            if elsewhere:
                raise UnmatchedError(f"rank {rank} exchanges at `{place}`, and rank {elsewhere[0]} does not")
            this.readers += 1
            if this.readers == self.count:
                del self._rounds[number]
            return [this.tensors[each] for each in group]

    def sum(self, rank: int, place: str, tensor: Tensor, group: Sequence[int]) -> Tensor:
        """The sum over the ranks of a group, in the same order on each."""
        first, *others = self.gather(rank, place, tensor, group)
        total = first.clone()
        for other in others:
            total += other
        return total

    def run(self, function: Callable[[int], Result]) -> list[Result]:
        """The function's result on each rank.

        Raises the exception of the first rank that has one of its own, otherwise UnmatchedError.
        """
        self._start()

        def guarded(rank: int) -> Result:
            try:
                return function(rank)
            finally:
                with self._changed:  # ranks that wait for this one end too
                    self._ended.add(rank)
                    self._changed.notify_all()

        with ThreadPoolExecutor(self.count) as pool:
            futures = [pool.submit(guarded, rank) for rank in range(self.count)]
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            own = (error for error in errors if not isinstance(error, UnmatchedError))
            raise next(own, errors[0])
        return [future.result() for future in futures]
