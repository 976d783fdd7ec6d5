"""What ranks exchange: every rank is a thread, and all of them call the same exchanges in the same order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")


class Exchange:
    """Exchanges between `count` ranks of a stage."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._barrier = threading.Barrier(count)
        self._slots: list[Tensor | None] = [None] * count

    def gather(self, rank: int, tensor: Tensor, group: Sequence[int]) -> list[Tensor]:
        """The tensors of the ranks of a group, in its order. All ranks take part, each in a group of its own."""
        self._slots[rank] = tensor
        self._barrier.wait()
        found = [self._slots[each] for each in group]
        self._barrier.wait()  # nobody overwrites a slot that another rank has yet to read
        return [each for each in found if each is not None]

    def sum(self, rank: int, tensor: Tensor, group: Sequence[int]) -> Tensor:
        """The sum over the ranks of a group, in the same order on each."""
        first, *others = self.gather(rank, tensor, group)
        total = first.clone()
        for other in others:
            total += other
        return total

    def run(self, function: Callable[[int], Result]) -> list[Result]:
        """The function's result on each rank. Raises the exception of the first rank that has one of its own."""

        def guarded(rank: int) -> Result:
            complete = False
            try:
                result = function(rank)
                complete = True
            finally:
                if not complete:
                    self._barrier.abort()  # the other ranks wait for this one
            return result

        with ThreadPoolExecutor(self.count) as pool:
            futures = [pool.submit(guarded, rank) for rank in range(self.count)]
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            own = (error for error in errors if not isinstance(error, threading.BrokenBarrierError))
            raise next(own, errors[0])
        return [future.result() for future in futures]
