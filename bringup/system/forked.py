"""Work on all processors at once, in forked children: for Python code, which threads would not speed up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any, TypeVar

from bringup.system.die_with_parent import die_with
from bringup.system.processors import processors

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")


def forked(
    work: Callable[[Item], Result], items: Sequence[Item], finish: Callable[[], None] = lambda: None
) -> list[Result]:
    """`work` of every item, in order. This process takes part; it repeats items that a child did not finish.

    Each process calls `finish` after its last item, also after an error.

    Items are started in order, by the next free process: the longest should be first. After an error no more are
    started; the error of the first item with one is raised here, with its own traceback. Results must be picklable. If
    a fork is not safe, because threads other than numpy's are running, nothing is forked.
    """
    import multiprocessing
    from concurrent.futures import ThreadPoolExecutor

    count = min(len(items), processors()) if _fork_is_safe() else 1
    context = multiprocessing.get_context("fork")
    with ExitStack() as children:
        queue = children.enter_context(_Queue(count, len(items)))
        threads = children.enter_context(ThreadPoolExecutor(max(count - 1, 1)))
        pipes: list[Connection] = []
        for number in range(1, count):
            ours, theirs = context.Pipe(duplex=False)
            given = theirs, work, items, finish, number, queue, os.getpid()
            child = context.Process(target=_serve, args=given, daemon=True)
            child.start()
            theirs.close()
            children.callback(child.join)
            children.callback(child.kill)
            pipes.append(ours)
        received = [threads.submit(_received, pipe) for pipe in pipes]  # so that no child blocks on a full pipe
        done: dict[int, Result] = {}
        try:
            for index in queue.share(0):
                done[index] = work(items[index])
        except Exception:  # raised again below, unless an earlier item has an error too
            queue.clear()
        try:
            for results in received:
                done |= results.result()
            return [done[index] if index in done else work(item) for index, item in enumerate(items)]
        finally:
            finish()


class _Queue:
    """The indices of items, shared by several processes: each process has its own first one, then gets the next.

    The others are in a file, which unlike a pipe holds any number. The processes share its offset: a read by one
    advances it for all. A read is atomic, and a process that is killed leaves nothing locked.
    """

    def __init__(self, processes: int, items: int) -> None:
        self._items = items
        self._file, path = mkstemp(prefix="bringup-")
        Path(path).unlink()
        os.write(self._file, b"".join(index.to_bytes(8) for index in range(processes, items)))
        os.lseek(self._file, 0, os.SEEK_SET)

    def __enter__(self) -> _Queue:
        return self

    def __exit__(self, *failed: object) -> None:
        os.close(self._file)

    def clear(self) -> None:
        """Removes all remaining items, for all processes."""
        os.lseek(self._file, 0, os.SEEK_END)

    def share(self, process: int) -> Iterator[int]:
        """The indices that a process works on, determined as they are requested."""
        if process < self._items:
            yield process
        while index := os.read(self._file, 8):
            yield int.from_bytes(index)


def _received(pipe: Connection) -> dict[int, Any]:
    """The results of a child's share by index, as far as received: an error or a signal may have ended it."""
    found: dict[int, Any] = {}
    try:
        while (result := pipe.recv()) is not None:
            index, value = result
            found[index] = value
    except (EOFError, OSError):  # OSError: it ended within a result
        pass
    return found


def _serve(
    pipe: Connection,
    work: Callable[[Item], Result],
    items: Sequence[Item],
    finish: Callable[[], None],
    number: int,
    queue: _Queue,
    parent: int,
) -> None:
    """The work of a child. It reports no error: its parent gets the same one."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends its children
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(parent)
        try:
            for index in queue.share(number):
                pipe.send((index, work(items[index])))
        finally:
            finish()
        pipe.send(None)
        status = 0
    finally:
        queue.clear()
        os._exit(status)


def _fork_is_safe() -> bool:
    """Whether only numpy's threads are running, at most one per processor: OpenBLAS has handlers for a fork."""
    tasks = Path("/proc/self/task")
    return tasks.is_dir() and len(list(tasks.iterdir())) <= (os.cpu_count() or 1)
