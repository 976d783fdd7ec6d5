"""`check --watch` in a real process: files change under it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from bringup.cli import watch as watching
from bringup.cli.watch import state
from tests import PATIENCE
from tests.cli.conftest import SMALL
from tests.cli.headers import gpt2_shapes, write_checkpoint
from tests.package_copy import installed

ADAPTER = (Path(__file__).parents[2] / "adapters/gpt2.py").read_text("utf-8")


class Watch:
    """`bringup check --watch` under way; both its streams, line by line."""

    def __init__(self, *words: str | Path, cwd: Path, package: str = "") -> None:
        command = [sys.executable, "-m", "bringup", "check", "--watch", "--format", "concise", *map(str, words)]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {"PYTHONPATH": package} if package else {}
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a background job's is ignored
        )  # fmt: skip
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def report(self, changed: str = "") -> list[str]:
        """The lines of a check; of one that a change to that file began. Other rounds are passed over: somebody may
        be editing this very checkout, which is watched as well."""
        found: list[str] = []
        end = time.monotonic() + PATIENCE
        while True:
            found.append(self.lines.get(timeout=end - time.monotonic()))
            if found[-1].startswith("watching "):
                what = found.pop(0) if changed else ""
                if changed in what:
                    return found[:-1]
                found.clear()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        assert self.process.stdout
        self.process.stdout.close()

    def silent(self, seconds: float, about: str) -> bool:
        """Whether no line that has these words comes for a while."""
        time.sleep(seconds)
        return not any(about in self.lines.get() for _ in range(self.lines.qsize()))


Start = Callable[..., Watch]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Watch] = []

    def begin(*words: str | Path, package: str = "") -> Watch:
        started.append(Watch(*words, cwd=tmp_path, package=package))
        return started[-1]

    yield begin
    for watch in started:
        watch.end()


def replace(path: Path, text: str, modified: int | None = None) -> None:
    """Writes a file that no process sees half written; `modified` are nanoseconds."""
    other = path.with_suffix(".new")
    other.write_text(text)
    if modified is not None:
        os.utime(other, ns=(modified, modified))
    other.replace(path)


def test_an_adapter_that_is_edited(start: Start, small: Path, tmp_path: Path) -> None:
    """Each change is one report; a syntax error is one as well; nothing is said while nothing changes."""
    adapter = tmp_path / "mine.py"
    adapter.write_text(ADAPTER)
    watch = start("--checkpoint", small, "--adapter", adapter)
    fits = "gpt2: 41 parameters, 43 tensors, 40 read, 3 dropped — fits"
    assert watch.report() == [fits]
    replace(adapter, ADAPTER.replace('S("h.{L}.{n}.{p}")', 'S("h.{L}.x{n}.{p}")'))
    lines = watch.report("mine.py")
    assert lines[-2:] == ["gpt2: 2 errors", "[*] 2 fixable with --fix"]
    replace(adapter, ADAPTER.replace("return gpt2", "return gpt2 +"))
    lines = watch.report("mine.py")
    assert lines[0].startswith("mine.py:19: error[BU026] `mine.py` fails when it is run: SyntaxError")
    replace(adapter, ADAPTER)
    assert watch.report("mine.py") == [fits]
    assert watch.silent(1.5, "mine.py")


def test_same_size_within_a_second(start: Start, small: Path, tmp_path: Path) -> None:
    """A module next to the model file is read again although its byte code would pass for current."""
    model, helper = tmp_path / "my_model.py", tmp_path / "my_helper.py"
    second = int(time.time()) * 10**9
    replace(helper, 'NAME = "xtb"\n', second)
    model.write_text(
        "import sys; sys.path.insert(0, '.')\nfrom my_helper import NAME\nfrom bringup.adapters.gpt2 import adapter\n"
        "from bringup.adapters.algebra.expr import S\nfrom bringup.graphs.family import Family\n"
        "def mine(config):\n    made = adapter(config)\n"
        "    made.drop(NAME, why='rest', expect=(0, 9))\n    return made\n"
        "family = Family(name='mine', graph='bringup.graphs.gpt2:GPT2', config='bringup.graphs.gpt2:GPT2Config', "
        "adapter=mine)\n"
    )
    shapes = gpt2_shapes(**SMALL) | {"xta": (3,)}
    write_checkpoint(small, shapes, json.loads((small / "config.json").read_text()))
    watch = start(model, "--checkpoint", small)
    assert "no rule reads the tensor `xta`" in watch.report()[0]
    replace(helper, 'NAME = "xta"\n', second + 10**8)
    lines = watch.report("my_helper.py")
    assert lines == ["gpt2: 41 parameters, 44 tensors, 40 read, 4 dropped — fits"]


@pytest.mark.slow
def test_the_checkpoint_and_its_config(start: Start, small: Path, tmp_path: Path) -> None:
    watch = start("--checkpoint", small)
    watch.report()
    config = (small / "config.json").read_text()
    replace(small / "config.json", config.replace('"n_layer": 3', '"n_layer": 2'))
    lines = watch.report("small/config.json")
    assert "no rule reads the tensor `h.2`" in lines[0]
    other = write_checkpoint(tmp_path / "other", gpt2_shapes(**SMALL | {"layers": 2}), {})
    (other / "model.safetensors").replace(small / "model.safetensors")
    lines = watch.report("small/model.safetensors")
    assert lines[-1].endswith("fits")


@pytest.mark.slow
def test_a_checkpoint_that_is_not_there_yet(start: Start, small: Path, tmp_path: Path) -> None:
    watch = start("--checkpoint", "later")
    assert "error[BU034]" in watch.report()[0]
    small.rename(tmp_path / "later")
    lines = watch.report("later")
    assert lines[-1].endswith("fits")


@pytest.mark.slow
def test_the_graph_file(start: Start, small: Path, tmp_path: Path) -> None:
    """Files of bringup itself count where they can be edited."""
    package = installed(tmp_path / "copy")
    watch = start("--checkpoint", small, package=str(package))
    watch.report()
    graph = package / "bringup/graphs/gpt2.py"
    replace(graph, graph.read_text("utf-8") + "\n# edited\n")
    assert watch.report("graphs/gpt2.py")[-1].endswith("fits")


def test_it_ends_on_a_signal(start: Start, small: Path) -> None:
    watch = start("--checkpoint", small)
    watch.report()
    watch.process.send_signal(signal.SIGINT)
    assert watch.process.wait(PATIENCE) == 130
    watch.reader.join(PATIENCE)
    assert watch.lines.empty()


def test_what_the_state_of_a_path_is(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    assert state(str(file)) is None
    file.write_text("1")
    first = state(str(file))
    other = tmp_path / "y"
    other.write_text("1")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert state(str(file)) not in (None, first)  # another file of the same size and time
    assert state(str(tmp_path)) == ["x.json"]


Rounds = Callable[..., list[str]]
FITS = "gpt2: 41 parameters, 43 tensors, 40 read, 3 dropped — fits"


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Rounds:
    """Runs `check --watch` in this process, where a poll is a step of `edits`, and takes no time."""
    monkeypatch.chdir(tmp_path)

    def run(edits: Iterator[None], *words: str | Path) -> list[str]:
        """The last line of each check, and between them which file changed."""
        said: list[str] = []

        def sleep(seconds: float) -> None:
            printed, notes = capfd.readouterr()
            said.extend(line for line in notes.splitlines() if line.startswith("now changed: "))
            said.extend(printed.splitlines()[-1:])
            if next(edits, edits) is edits:
                raise KeyboardInterrupt

        monkeypatch.setattr(watching, "time", SimpleNamespace(sleep=sleep, strftime="now".format))
        with pytest.raises(SystemExit) as ended:
            watching.watch(["check", "--format", "concise", *map(str, words)], map(str, words))
        assert ended.value.code == 130
        return said

    return run


def polls(count: int) -> Iterator[None]:
    yield from [None] * count


EMPTIED: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: file.write_text(""),
    "deleted": Path.unlink,
}


@pytest.mark.parametrize("how", EMPTIED)
def test_an_editor_that_is_slow(how: str, rounds: Rounds, small: Path, tmp_path: Path) -> None:
    """A file that is truncated or deleted, and then written in parts, is checked once, when it is complete."""
    adapter = tmp_path / "mine.py"
    adapter.write_text(ADAPTER)

    def edits() -> Iterator[None]:
        EMPTIED[how](adapter)
        yield from polls(watching.EMPTIED)
        for length in (0, 10, 200):
            adapter.write_text(ADAPTER[:length])
            yield from polls(watching.STEADY)
        adapter.write_text(ADAPTER)
        yield from polls(watching.STEADY + 1)

    assert rounds(edits(), "--checkpoint", small, "--adapter", adapter) == [FITS, "now changed: mine.py", FITS]


@pytest.mark.parametrize("how", EMPTIED)
def test_a_file_that_stays_empty(how: str, rounds: Rounds, small: Path, tmp_path: Path) -> None:
    """It is checked once; what is written there later is checked as well."""
    helper, adapter = tmp_path / "my_helper.py", tmp_path / "mine.py"
    helper.write_text("NAME = 'gpt2'\n")
    text = "import sys; sys.path.insert(0, '.')\nfrom my_helper import NAME\n"
    adapter.write_text(ADAPTER.replace("from bringup", text + "from bringup", 1))

    def edits() -> Iterator[None]:
        EMPTIED[how](helper)
        yield from polls(5 * watching.EMPTIED)
        helper.write_text("NAME = 'gpt2'\n")
        yield from polls(5 * watching.EMPTIED)

    first, changed, failed, again, last = rounds(edits(), "--checkpoint", small, "--adapter", adapter)
    assert (first, changed, again, last) == (FITS, "now changed: my_helper.py", changed, FITS)
    assert failed == "1 error"


def test_a_check_that_is_killed(rounds: Rounds, small: Path, tmp_path: Path) -> None:
    """It is repeated when a file changes, not before, although it does not report the files that it has read."""
    helper, adapter = tmp_path / "my_helper.py", tmp_path / "mine.py"
    helper.write_text("")
    text = "import sys; sys.path.insert(0, '.')\nimport my_helper\n"
    adapter.write_text(ADAPTER.replace("from bringup", text + "from bringup", 1))

    def edits() -> Iterator[None]:
        helper.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
        yield from polls(5 * watching.EMPTIED)
        helper.write_text("# repaired\n")
        yield from polls(5 * watching.EMPTIED)

    said = rounds(edits(), "--checkpoint", small, "--adapter", adapter)
    assert said == [FITS, "now changed: my_helper.py", "now changed: my_helper.py", FITS]
