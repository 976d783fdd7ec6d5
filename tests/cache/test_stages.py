"""Cached stages are those that tracing anew would give, whatever was edited; and no more is traced than has to be."""

from __future__ import annotations

import re

import pytest

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
def mini(tmp_path) -> Mini:
    return Mini.write(tmp_path)


def found(stderr: str) -> int:
    if "all from the cache" in stderr:
        return FUNCTIONS
    number = re.search(r"(\d+) of them from the cache", stderr)
    return int(number[1]) if number else 0


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_gives_what_an_empty_cache_gives(mini, edit):
    file, old, new, cached = EDITS[edit]
    before = mini.mlir("before.mlir")
    mini.edit(file, old, new)
    output = mini.compile("--emit", "mlir", "-o", "after.mlir").stderr
    after = (mini.folder / "after.mlir").read_text()
    assert after != before
    assert after == mini.mlir("anew.mlir", cache="empty")
    assert found(output) == cached, output


def test_nothing_is_traced_twice_and_torch_is_not_imported(mini):
    first = mini.mlir("first.mlir")
    (mini.folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    output = mini.compile("--emit", "mlir", "-o", "again.mlir").stderr
    assert found(output) == FUNCTIONS
    assert (mini.folder / "again.mlir").read_text() == first


def test_an_edit_while_the_process_runs_is_not_mistaken_for_what_it_runs(mini, monkeypatch):
    from bringup.compile.cache import source_digest, text_digests

    monkeypatch.setattr(text_digests, "STARTED", (mini.folder / "mini.py").stat().st_mtime - 1)
    assert source_digest.digests([mini.folder / "mini.py"]) is None
