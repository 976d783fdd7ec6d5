"""Named points of a compile, and the way in which a child process ends itself at one of them.

A point is a call: `at` names a function as `module:attribute`, as its caller looks it up. `install`, called in a child
before its command, wraps that function. The signal is raised inside of the process, so it arrives at that call.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = "bringup.compile.bundle.folder:"
PIPELINE = "bringup.compile.pipeline:"
IREE = "bringup.compile.targets.iree_compiler:"
OLD, NEW, NONE = "old", "new", ""
_write = os.write


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where a compile ends, and what is there afterwards.

    `when` is `before` or `after` the call, or `half`: half of its bytes are written. Only calls on a path that has
    `on` in it count, and the first `skip` of them pass. `bundle` is the one at its place after SIGKILL, and `left` the
    hidden files next to it (`.b.lock`); `stopped` is the bundle after SIGTERM or SIGINT, which leave none of these.
    `orphans` counts the unfinished files in the cache; an entry whose description begins with `lacks` is absent.
    `in_thread`: the call is of another thread than the first, which ends it after a signal that can be caught.
    """

    at: str
    when: str
    on: str = ""
    skip: int = 0
    bundle: str = OLD
    left: tuple[str, ...] = ()
    stopped: str = OLD
    orphans: int = 0
    lacks: str | tuple[str, ...] = "weights"
    earlier: bool = True  # a bundle is at the place already
    exchanges: bool = True  # the file system exchanges two names in one step
    in_thread: bool = False
    in_child: bool = False  # a process that traces is ended, not the one that compiles
    target: str = "torch"


_PART = ("lock", "part")
_STAGE = "decode.layer0"
POINTS = {
    "after the check": Point(at=PIPELINE + "check", when="after"),
    "before the export": Point(at=PIPELINE + "encoded_program", when="before"),
    "a stage of the export": Point(at="bringup.compile.program.trace:Tracer.__call__", when="before", lacks=_STAGE),
    "half of a cached stage": Point(at="os:fdopen", when="half", on="/compile/stage/", lacks=_STAGE, orphans=1),
    "before a cached stage has its name": Point(
        at="os:replace", when="before", on="/compile/stage/", lacks=_STAGE, orphans=1
    ),
    "before the lock": Point(at="bringup.system.lock:_acquired", when="before", on="/b"),
    "after the lock": Point(at="os:pwrite", when="after", on=".b.lock", left=("lock",)),
    "after the folder": Point(at=FOLDER + "make_folder", when="after", left=_PART),
    "half of the weights' header": Point(at="os:write", when="half", on="weights.safetensors", left=_PART),
    "half of the third parameter": Point(at="os:write", when="half", on="weights.safetensors", skip=3, left=_PART),
    "before the weights are on the disk": Point(at="bringup.system.atomic:NewFile.finish", when="before", left=_PART),
    "after the weights": Point(at=PIPELINE + "place_weights", when="after", left=_PART),
    "after a link to the weights": Point(at="os:link", when="after", left=_PART, lacks="no entry"),
    "half of a program": Point(at="os:write", when="half", on="decode.layer0.pt2", left=_PART),
    "before a program has its name": Point(at="os:replace", when="before", on="decode.layer0.pt2", left=_PART),
    "before the manifest": Point(at=FOLDER + "seal", when="before", left=_PART),
    "half of the manifest": Point(at="os:write", when="half", on="manifest.json", left=_PART),
    "before the manifest has its name": Point(at="os:replace", when="before", on="manifest.json", left=_PART),
    "after the manifest": Point(at=FOLDER + "seal", when="after", left=_PART),
    "half of the folder is on the disk": Point(at=FOLDER + "flush_tree", when="before", left=_PART),
    "after the folder is on the disk": Point(at=FOLDER + "_flush", when="after", left=_PART),
    "before the exchange": Point(at=FOLDER + "exchange", when="before", left=_PART, stopped=NEW),
    "after the exchange": Point(at=FOLDER + "exchange", when="after", left=_PART, bundle=NEW, stopped=NEW),
    "after the name is on the disk": Point(at=FOLDER + "_move", when="after", left=_PART, bundle=NEW, stopped=NEW),
    "the old bundle is half removed": Point(
        at="os:rmdir", when="before", on="programs", left=_PART, bundle=NEW, stopped=NEW
    ),
    "before the lock is removed": Point(
        at="os:unlink", when="before", on=".b.lock", left=("lock",), bundle=NEW, stopped=NEW
    ),
    "after the lock is removed": Point(at="os:unlink", when="after", on=".b.lock", bundle=NEW, stopped=NEW),
    "half of the weights' entry": Point(
        at="os:fdopen", when="half", on="/compile/weights/", bundle=NEW, stopped=NEW, orphans=1
    ),
    "before the cache is trimmed": Point(
        at="bringup.compile.cache.store:Store.trim", when="before", bundle=NEW, stopped=NEW
    ),
    "without exchange: after the old bundle is aside": Point(
        at="os:rename", when="after", on=".b.old", exchanges=False, bundle=NONE, left=(*_PART, "old"), stopped=NEW
    ),
    "without exchange: after the new one has its name": Point(
        at="os:rename", when="after", on=".b.part", exchanges=False, bundle=NEW, left=("lock", "old"), stopped=NEW
    ),
    "the first bundle: half of the manifest": Point(
        at="os:write", when="half", on="manifest.json", earlier=False, bundle=NONE, left=_PART, stopped=NONE
    ),
    "the first bundle: before it has its name": Point(
        at="os:rename", when="before", on=".b.part", earlier=False, bundle=NONE, left=_PART, stopped=NEW
    ),
    "the first bundle: after it has its name": Point(
        at="os:rename", when="after", on=".b.part", earlier=False, bundle=NEW, left=("lock",), stopped=NEW
    ),
}
# What IREE compiles takes seconds more.
IREE_POINTS = {
    "iree-compile has begun": Point(
        target="iree-cpu", at=IREE + "Compilation._start", when="after", left=_PART, lacks="module"
    ),
    "after iree-compile": Point(
        target="iree-cpu", at=IREE + "Compilation.result", when="after", left=_PART, lacks="module"
    ),
    "half of the cached module": Point(
        target="iree-cpu", at="os:fdopen", when="half", on="/compile/module/", left=_PART, lacks="module", orphans=1
    ),
    "half of the module": Point(target="iree-cpu", at="os:write", when="half", on="module.vmfb", left=_PART),
}
KERNEL_POINTS = {
    "half of the cached kernels": Point(
        target="cpu",
        at="os:fdopen",
        when="half",
        on="/compile/module/",
        left=_PART,
        lacks="kernels",
        orphans=1,
        in_thread=True,
    ),
    "half of the kernels": Point(target="cpu", at="os:write", when="half", on="kernels.o", left=_PART),
}
_BOTH = ("decode.prologue", "prefill_32.prologue")  # the first in this process, the second in a child
# A process that traces ends, and the compile goes on.
SURVIVED = {
    "the first stage in a child": Point(
        at="bringup.compile.program.trace:Tracer.__call__", when="before", in_child=True, bundle=NEW, lacks=_BOTH
    ),
    "half of a stage cached by a child": Point(
        at="os:fdopen", when="half", on="/compile/stage/", in_child=True, bundle=NEW, lacks=_BOTH, orphans=1
    ),
}
EVERY = POINTS | IREE_POINTS | KERNEL_POINTS | SURVIVED


def struck(name: str) -> str:
    """The line that a process writes to its standard error before the signal."""
    return f"struck: {name}"


def install(name: str, signum: int) -> None:
    """From now on this process, or with `in_child` one that it forks, gets the signal at the point of this name."""
    point, process, past = EVERY[name], os.getpid(), [0]

    def strike(words: tuple[object, ...]) -> bool:
        if (os.getpid() == process) is point.in_child or point.on not in " ".join(map(_path, words)):
            return False
        past[0] += 1
        return past[0] == point.skip + 1

    def end() -> None:
        _write(2, (struck(name) + "\n").encode())
        signal.raise_signal(signum)

    def call(*words: Any, **named: Any) -> Any:
        if not strike(words):
            return real(*words, **named)
        if point.when == "half":
            return _half(real, words, end)
        if point.when == "before":
            end()
        result = real(*words, **named)
        if point.when == "after":
            end()
        return result

    owner, attribute = function_of(point.at)
    real = getattr(owner, attribute)
    setattr(owner, attribute, call)
    if not point.exchanges:
        folder, exchange = function_of(FOLDER + "exchange")
        setattr(folder, exchange, lambda *_: False)


def function_of(at: str) -> tuple[Any, str]:
    """The owner and the name of the function that a point names."""
    module, _, path = at.partition(":")
    *outer, attribute = path.split(".")
    return reduce(getattr, outer, import_module(module)), attribute


def _path(word: object) -> str:
    """The path that an argument names, as a path or as a descriptor; else nothing."""
    descriptor = Path(f"/proc/self/fd/{word}")
    if isinstance(word, int) and descriptor.is_symlink():
        return str(descriptor.readlink())
    return os.fsdecode(word) if isinstance(word, str | bytes | os.PathLike) else ""


def _half(real: Callable[..., Any], words: tuple[Any, ...], end: Callable[[], None]) -> Any:
    """Of `os.write`, and of `os.fdopen`, whose file then writes half of what it gets first."""
    if real is _write:
        descriptor, data = words
        count = _write(descriptor, data[: len(data) // 2])
        end()
        return count
    return _Halved(real(*words), end)


class _Halved:
    """A file, open for writing, whose first write ends halfway."""

    def __init__(self, file: Any, end: Callable[[], None]) -> None:
        self.file, self.end = file, end

    def __enter__(self) -> _Halved:
        return self

    def __exit__(self, *failed: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        self.end()
        self.file.write(data[len(data) // 2 :])
