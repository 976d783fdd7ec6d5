"""Processes of Triton that the tests of one pytest worker share, because starting one takes longer than a kernel."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

IDLE = 2  # processes left open: each has about 200 MB

Start = Callable[[], AbstractContextManager[Any]]


class Processes:
    """Opened by `start`, and used for all architectures. An error in one ends it, as it would without this."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._idle: list[tuple[AbstractContextManager[Any], Any]] = []

    @contextmanager
    def worker(self) -> Generator[Any]:
        """What `start` gives, an idle one where there is one. Threads may call it: list methods are atomic."""
        try:
            process, compiles = self._idle.pop()
        except IndexError:
            process = self._start()
            compiles = process.__enter__()
        try:
            yield compiles
        except BaseException:
            process.__exit__(None, None, None)
            raise
        self._idle.append((process, compiles))
        self.close(IDLE)

    def close(self, left: int = 0) -> None:
        """Ends idle processes."""
        while len(self._idle) > left:
            self._idle.pop(0)[0].__exit__(None, None, None)
