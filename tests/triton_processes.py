"""Triton's processes that the tests of one pytest worker share: starting one takes as long as compiling a kernel."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

IDLE = 2  # processes left open: each has about 200 MB

Start = Callable[[str], AbstractContextManager[Any]]


class Processes:
    """Opened by `start` for an architecture. An error in one ends it, as it would without this."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._idle: list[tuple[str, AbstractContextManager[Any], Any]] = []  # the last used last

    @contextmanager
    def worker(self, capability: str) -> Generator[Any]:
        """What `start` gives, an idle one where there is one. Threads may call it: list methods are atomic."""
        found = next((each for each in self._idle if each[0] == capability), None)
        try:
            self._idle.remove(found) if found else None  # another thread may have been faster
        except ValueError:
            found = None
        if found is None:
            process = self._start(capability)
            found = (capability, process, process.__enter__())
        try:
            yield found[2]
        except BaseException:
            found[1].__exit__(None, None, None)
            raise
        self._idle.append(found)
        self.close(IDLE)

    def close(self, left: int = 0) -> None:
        """Ends the processes that were idle longest."""
        while len(self._idle) > left:
            self._idle.pop(0)[1].__exit__(None, None, None)
