"""Cached stages are those that tracing anew would give, whatever was edited; and no more is traced than has to be."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from bringup.compile.program import stage_key
from bringup.compile.program.assemble import Stage
from bringup.compile.program.program import EntryPoint
from bringup.graphs.core.graph import Graph
from tests.cache.mini import Mini

FUNCTIONS = 6  # two entry points (the context is one bucket long) of three stages each

# What is edited, and how many of the six stages are then found.
EDITS = {
    "a layer's forward": ("mini.py", "x + helpers.twice(y)", "x - helpers.twice(y)", 4),
    "the prologue": ("mini.py", "+ OFFSET,)", "- OFFSET,)", 4),
    "the epilogue": ("mini.py", "self.norm(x)", "self.norm(x * 2)", 4),
    "a constant": ("mini.py", "OFFSET = 0.25", "OFFSET = 0.5", 0),
    "a helper's body": ("helpers.py", "x * 2", "x * 3", 0),
    "a helper's constant": ("helpers.py", "SCALE = 1.5", "SCALE = 2.5", 0),
    "a setting": ("config.json", '"factor": 1.0', '"factor": 3.0', 0),
    "a size": ("config.json", '"hidden": 16', '"hidden": 32', 0),
    "the context": ("config.json", '"max_positions": 32', '"max_positions": 128', 0),
    "a line more in a forward": ("mini.py", "        y = self.fc(x)", "        x = x + 1\n        y = self.fc(x)", 4),
}


@pytest.fixture
def mini(tmp_path, nursery) -> Mini:
    return Mini.write(tmp_path, nursery)


@pytest.fixture(scope="module")
def before(tmp_path_factory, nursery) -> Mini:
    """Compiled once to `before.mlir`, its stages in `cache`."""
    mini = Mini.write(tmp_path_factory.mktemp("before"), nursery)
    mini.mlir("before.mlir")
    return mini


@pytest.fixture
def edited(before) -> Iterator[Mini]:
    """The same files, for keys have their paths, and a copy of the cache, `copy`; all is as before afterwards."""
    texts = {path: path.read_text() for path in before.folder.iterdir() if path.is_file()}
    shutil.copytree(before.folder / "cache", before.folder / "copy")
    yield before
    for path in before.folder.iterdir():
        if path in texts:
            path.write_text(texts[path])
        elif path.is_file():
            path.unlink()
        elif path.name != "cache":
            shutil.rmtree(path)


def found(stderr: str) -> int:
    if "all from the cache" in stderr:
        return FUNCTIONS
    number = re.search(r"(\d+) of them from the cache", stderr)
    return int(number[1]) if number else 0


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_gives_what_an_empty_cache_gives(edited, edit):
    file, old, new, cached = EDITS[edit]
    edited.edit(file, old, new)
    output = edited.compile("--target", "iree-cpu", "--emit", "mlir", "-o", "after.mlir", cache="copy")
    after = (edited.folder / "after.mlir").read_text()
    assert after != (edited.folder / "before.mlir").read_text()
    assert after == edited.mlir("anew.mlir", cache="empty")
    assert found(output) == cached, output


@pytest.mark.slow
def test_nothing_is_traced_twice_and_torch_is_not_imported(edited):
    (edited.folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    output = edited.compile_alone("--target", "iree-cpu", "--emit", "mlir", "-o", "again.mlir", cache="copy")
    assert found(output) == FUNCTIONS
    assert (edited.folder / "again.mlir").read_text() == (edited.folder / "before.mlir").read_text()


def test_an_edit_while_the_process_runs_is_not_mistaken_for_what_it_runs(mini, monkeypatch):
    from bringup.compile.cache import source_digest, text_digests

    monkeypatch.setattr(text_digests, "STARTED", (mini.folder / "mini.py").stat().st_mtime - 1)
    assert source_digest.digests([mini.folder / "mini.py"]) is None


def test_what_a_stage_calls_is_in_its_key():
    """The head calls `final`, which here calls `hidden_state`; neither is the prologue's."""

    class Calls(Graph):
        def prologue(self, step): ...

        def hidden_state(self, x, r):
            return x + r

        def final(self, x, r):
            return [self.hidden_state(a, r) for a in x]

        def epilogue(self, x, r):
            return self.final(x, r)

    graph = object.__new__(Calls)
    point = EntryPoint(num_tokens=1, num_sequences=1, decode=True, contiguous=True)
    used = {
        part: stage_key._methods_used(graph, Stage(name="x", part=part, path="", point=point)) & set(stage_key.TRACED)
        for part in ("prologue", "layer", "hidden", "final", "last_rows")
    }
    assert used == {
        "prologue": {"prologue"},
        "layer": set(),
        "hidden": {"hidden_state"},
        "final": {"final", "hidden_state"},
        "last_rows": {"epilogue", "final", "hidden_state"},
    }
