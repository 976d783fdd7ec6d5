"""Work on all processors at once, in forked children: for Python code, which threads would not speed up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bringup.system.die_with_parent import die_with

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")


def forked(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`work` of every item, in order. This process takes its share; what a child fails at, it does again itself.

    An error is therefore raised here, with its own traceback. Results have to be picklable. Where a fork is not safe,
    because threads other than numpy's are alive, nothing is forked.
    """
    import multiprocessing

    count = min(len(items), _processors()) if _fork_is_safe() else 1
    shares = [items[index::count] for index in range(count)]
    context = multiprocessing.get_context("fork")
    with ExitStack() as children:
        pipes: list[Connection] = []
        for share in shares[1:]:
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_serve, args=(theirs, work, share, os.getpid()), daemon=True)
            child.start()
            theirs.close()
            children.callback(child.join)
            children.callback(child.kill)
            pipes.append(ours)
        results = [[work(item) for item in shares[0]]]
        results += [
            _received(pipe) or [work(item) for item in share] for pipe, share in zip(pipes, shares[1:], strict=True)
        ]
    return [results[index % count][index // count] for index in range(len(items))]


def _received(pipe: Connection) -> list[Any]:
    """What a child made of its share; nothing when it failed."""
    try:
        return pipe.recv()
    except EOFError:
        return []


def _serve(pipe: Connection, work: Callable[[Item], Result], share: Sequence[Item], parent: int) -> None:
    """The child's life. It says nothing when it fails: its parent meets the same error."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends its children
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(parent)
        pipe.send([work(item) for item in share])
        status = 0
    finally:
        os._exit(status)


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _fork_is_safe() -> bool:
    """numpy's threads stand a fork (OpenBLAS has handlers for it); there is at most one a processor."""
    tasks = Path("/proc/self/task")
    return tasks.is_dir() and len(list(tasks.iterdir())) <= (os.cpu_count() or 1)
