"""`compile --force` over a bundle, ended at each named point: what is there then, and that the next compile works.

The points, and what has to be there after each, are in kill_points.py. A kill is a signal that the process gets at
one call, so that none depends on time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path

import pytest

from bringup.compile.cache.store import Store
from tests import PATIENCE
from tests.resources.compiles import Ended, Nursery, names, temporary, tokens_of
from tests.resources.kill_points import (
    EVERY,
    IREE_POINTS,
    KERNEL_POINTS,
    NEW,
    OLD,
    POINTS,
    SURVIVED,
    Point,
    function_of,
    struck,
)

LENGTH = ("--max-seq-len", "32")  # two entry points
Content = dict[str, str]


class Scene:
    """A place with a bundle, and a cache. What is compiled there has other weights."""

    def __init__(self, nursery: Nursery, checkpoints: list[Path], folder: Path, target: str) -> None:
        self.nursery, self.checkpoints, self.target = nursery, checkpoints, target
        self.out, self.cache = folder / "o" / "b", folder / "cache"

    @property
    def entries_folder(self) -> Path:
        return self.cache / "bringup" / "compile"

    def compile(self, number: int, **options: object) -> Ended:
        words = ["compile", "--checkpoint", self.checkpoints[number], "--target", self.target, *LENGTH, "-o", self.out]
        running = self.nursery.start(*words, "--force", environment={"XDG_CACHE_HOME": str(self.cache)}, **options)
        ended = running.wait()
        end = time.monotonic() + PATIENCE  # until the children of a process that was killed are gone
        while alive := group(running.pid):
            assert time.monotonic() < end, alive
            time.sleep(0.01)
        return ended

    def struck(self, name: str, sent: signal.Signals) -> Ended:
        """Compiles the second checkpoint, and is ended at a point."""
        ended = self.compile(1, before="tests.resources.kill_points:install", arguments=[name, sent])
        assert ended.said.splitlines().count(struck(name)) == 1, ended.said
        return ended

    def entries_are_whole(self, orphans: int) -> None:
        store = Store(self.entries_folder)
        assert len(list(self.entries_folder.glob("*/.*"))) == orphans
        found = list(store.entries())
        assert len(found) == len(list(self.entries_folder.glob("*/[!.]*")))
        assert all(store.get(entry.kind, entry.inputs) is not None for entry in found)


Prepare = Callable[[Point], Scene]


def content(bundle: Path) -> Content:
    """The digest of every file, {} where there is no folder."""
    files = (path for path in bundle.rglob("*") if path.is_file())
    return {str(path.relative_to(bundle)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def group(leader: int) -> list[str]:
    """The processes of a group that are alive: the state and the group are fields 3 and 5 of proc_pid_stat(5)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number, *_ = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(number) == leader and state not in "ZX":
            found.append(str(entry))
    return found


@pytest.fixture(scope="session")
def whole(nursery, checkpoints, tmp_path_factory) -> Callable[[str], tuple[Path, dict[str, Content]]]:
    """By target: a folder with a bundle of each checkpoint and the cache of both compiles, and the bundles' content."""
    done: dict[str, tuple[Path, dict[str, Content]]] = {}

    def prepared(target: str) -> tuple[Path, dict[str, Content]]:
        if target not in done:
            folder = tmp_path_factory.mktemp(f"whole-{target}")
            scene, contents, tokens = Scene(nursery, checkpoints, folder, target), {}, []
            for number, name in enumerate((OLD, NEW)):
                scene.out = folder / name
                ended = scene.compile(number)
                assert ended.code == 0, ended.said
                tokens.append(tokens_of(scene.out))
                contents[name] = content(scene.out)
            assert tokens[0] != tokens[1]
            done[target] = folder, contents
        return done[target]

    return prepared


@pytest.fixture
def prepare(nursery, checkpoints, tmp_path, whole) -> Prepare:
    def prepared(point: Point) -> Scene:
        source, _ = whole(point.target)
        scene = Scene(nursery, checkpoints, tmp_path, point.target)
        shutil.copytree(source / "cache", scene.cache)
        scene.out.parent.mkdir()
        if point.earlier:
            shutil.copytree(source / OLD, scene.out)
        store = Store(scene.entries_folder)
        store.remove([entry for entry in store.entries() if entry.what.startswith(point.lacks)])
        return scene

    return prepared


def the_next_succeeds(scene: Scene, expected: Content) -> None:
    ended = scene.compile(1)
    assert ended.code == 0, ended.said
    assert names(scene.out.parent) == ["b"]
    assert content(scene.out) == expected


def killed(scene: Scene, name: str, contents: dict[str, Content]) -> None:
    point = EVERY[name]
    inode = scene.out.stat().st_ino if point.earlier else 0
    ended = scene.struck(name, signal.SIGKILL)
    assert ended.code == -signal.SIGKILL, ended.said
    assert names(scene.out.parent) == sorted((["b"] if point.bundle else []) + [f".b.{end}" for end in point.left])
    assert content(scene.out) == contents.get(point.bundle, {})
    assert point.bundle != OLD or scene.out.stat().st_ino == inode
    assert "old" not in point.left or content(scene.out.with_name(".b.old")) == contents[OLD]
    scene.entries_are_whole(point.orphans)
    the_next_succeeds(scene, contents[NEW])


def stopped(scene: Scene, name: str, sent: signal.Signals, contents: dict[str, Content]) -> None:
    """A signal that can be caught: one line, 128 and its number, and nothing is left next to the bundle."""
    point = EVERY[name]
    ended = scene.struck(name, sent)
    assert ended.code == 128 + sent, ended.said
    assert ended.said.splitlines()[-1] == f"stopped by {sent.name}; partial files were removed"
    assert "Traceback" not in ended.said
    assert names(scene.out.parent) == (["b"] if point.stopped else [])
    assert content(scene.out) == contents.get(point.stopped, {})
    assert names(temporary(scene.nursery.folder)) == []
    scene.entries_are_whole(0 if point.in_thread else point.orphans)
    the_next_succeeds(scene, contents[NEW])


def some(points: Iterable[str], quick: Container[str]) -> list[object]:
    """The parameters of a test: those that are not quick are slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in points]


@pytest.mark.parametrize("name", EVERY)
def test_the_function_of_a_point_exists(name):
    owner, attribute = function_of(EVERY[name].at)
    assert callable(getattr(owner, attribute))


KILLED = {
    "half of a cached stage",
    "half of the third parameter",
    "before the manifest has its name",
    "before the exchange",
    "after the exchange",
    "the old bundle is half removed",
    "without exchange: after the old bundle is aside",
}
STOPPED = {"half of the manifest", "after the exchange"}


@pytest.mark.parametrize("name", some([*POINTS, *IREE_POINTS, *KERNEL_POINTS], KILLED))
def test_killed_at(prepare, whole, name):
    killed(prepare(EVERY[name]), name, whole(EVERY[name].target)[1])


# Both signals raise the same exception, from the same handler: each point has one of them, and some have both.
BOTH = {"half of the manifest", "after the exchange", "a stage of the export"}
TERMINATED = [name for number, name in enumerate(POINTS) if number % 2 == 0 or name in BOTH]
INTERRUPTED = [name for number, name in enumerate(POINTS) if number % 2 or name in BOTH]


@pytest.mark.parametrize("name", some([*TERMINATED, *IREE_POINTS, *KERNEL_POINTS], STOPPED))
def test_terminated_at(prepare, whole, name):
    stopped(prepare(EVERY[name]), name, signal.SIGTERM, whole(EVERY[name].target)[1])


@pytest.mark.parametrize("name", some(INTERRUPTED, {"a stage of the export"}))
def test_interrupted_at(prepare, whole, name):
    stopped(prepare(EVERY[name]), name, signal.SIGINT, whole(EVERY[name].target)[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", SURVIVED)
def test_a_child_killed_at(prepare, whole, name):
    """The process that compiles does again what a child of it did not finish."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("with one processor nothing is traced in a child")
    point, contents = SURVIVED[name], whole("torch")[1]
    scene = prepare(point)
    ended = scene.struck(name, signal.SIGKILL)
    assert ended.code == 0, ended.said
    assert names(scene.out.parent) == ["b"]
    assert content(scene.out) == contents[NEW]
    scene.entries_are_whole(point.orphans)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["half of the manifest", "after the exchange", "the old bundle is half removed"])
def test_killed_again_and_again(prepare, whole, name):
    """What each leaves does not stop the next; the one after them removes it all."""
    point, contents = POINTS[name], whole("torch")[1]
    scene = prepare(point)
    for _ in range(3):
        assert scene.struck(name, signal.SIGKILL).code == -signal.SIGKILL
        assert names(scene.out.parent) == sorted(["b", *(f".b.{end}" for end in point.left)])
    the_next_succeeds(scene, contents[NEW])
