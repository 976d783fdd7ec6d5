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

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")


def forked(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`work` of every item, in order. This process takes part; what is not finished, it does again itself, in order.

    Items are started in their order, by whichever process is free: the longest ones should be first. After an error no
    more are started; the error of the first item that has one is raised here, with its own traceback. Results have to
    be picklable. Where a fork is not safe, because threads other than numpy's are alive, nothing is forked.
    """
    import multiprocessing
    from concurrent.futures import ThreadPoolExecutor

    count = min(len(items), _processors()) if _fork_is_safe() else 1
    context = multiprocessing.get_context("fork")
    with ExitStack() as children:
        queue = children.enter_context(_Queue(count, len(items)))
        threads = children.enter_context(ThreadPoolExecutor(max(count - 1, 1)))
        pipes: list[Connection] = []
        for number in range(1, count):
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_serve, args=(theirs, work, items, number, queue, os.getpid()), daemon=True)
            child.start()
            theirs.close()
            children.callback(child.join)
            children.callback(child.kill)
            pipes.append(ours)
        received = [threads.submit(_received, pipe) for pipe in pipes]  # so that no child waits for a full pipe
        done: dict[int, Result] = {}
        try:
            for index in queue.share(0):
                done[index] = work(items[index])
        except Exception:  # raised again below, unless an earlier item has an error too
            queue.clear()
        for results in received:
            done |= results.result()
        return [done[index] if index in done else work(item) for index, item in enumerate(items)]


class _Queue:
    """The indices of items, for several processes: of each its own first one, then whichever is next.

    The next ones are in a file, which unlike a pipe holds any number. Its offset is the processes' common one: a read
    of one moves it for all. A read is atomic, and a process that is killed leaves nothing locked.
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
        """Leaves no more items, for any process."""
        os.lseek(self._file, 0, os.SEEK_END)

    def share(self, process: int) -> Iterator[int]:
        """The indices that a process works on; which, is decided as they are taken."""
        if process < self._items:
            yield process
        while index := os.read(self._file, 8):
            yield int.from_bytes(index)


def _received(pipe: Connection) -> dict[int, Any]:
    """The results of a child's share by index, as far as it came: an error or a signal may have ended it."""
    found: dict[int, Any] = {}
    try:
        while (result := pipe.recv()) is not None:
            index, value = result
            found[index] = value
    except (EOFError, OSError):  # OSError: it ended in the middle of a result
        pass
    return found


def _serve(
    pipe: Connection,
    work: Callable[[Item], Result],
    items: Sequence[Item],
    number: int,
    queue: _Queue,
    parent: int,
) -> None:
    """The child's life. It says nothing when it fails: its parent meets the same error."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends its children
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(parent)
        for index in queue.share(number):
            pipe.send((index, work(items[index])))
        pipe.send(None)
        status = 0
    finally:
        queue.clear()
        os._exit(status)


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _fork_is_safe() -> bool:
    """numpy's threads stand a fork (OpenBLAS has handlers for it); there is at most one a processor."""
    tasks = Path("/proc/self/task")
    return tasks.is_dir() and len(list(tasks.iterdir())) <= (os.cpu_count() or 1)
