"""Modules beside a user's file: imported by it as a script would, by nobody else, and part of the cache's keys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bringup as package
from bringup import userfiles
from bringup.cli.fix import repair
from bringup.compile.cache import text_digests
from bringup.compile.cache.source_digest import digests
from bringup.compile.fix.search import add_fixes
from bringup.graphs.registry import by_name
from tests.cli.conftest import SMALL, Bringup
from tests.cli.headers import gpt2_config

ROOT = Path(__file__).parents[2]
MODEL = """import helpers
from helpers import SCALE
from parts.inner import inner
import parts.other as other
from bringup.adapters import gpt2
from bringup.graphs.gpt2 import GPT2, GPT2Config
from bringup.graphs.family import Family


class Mine(GPT2):
    mark = (SCALE, inner(), other.NAME, helpers.__file__)

    def epilogue(self, x_Rm):
        import late

        return super().epilogue(x_Rm) * late.factor()


family = Family(name="mine", graph=Mine, config=GPT2Config, adapter=gpt2.adapter)
"""
SIBLINGS = {
    "helpers.py": "from second import SCALE\n",
    "second.py": "SCALE = {scale}\n",
    "deep.py": "",
    "late.py": "def factor():\n    import second\n    return second.SCALE\n",
    "parts/__init__.py": "",
    "parts/inner.py": "from . import other\nfrom second import SCALE\n\ndef inner():\n    return other.NAME, SCALE\n\n"
    "def unused():\n    import deep\n    from . import last\n",
    "parts/last.py": "",
    "parts/other.py": "NAME = 'other'\n",
}


def model(folder: Path, scale: int = 2) -> Path:
    for name, text in SIBLINGS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("{scale}", str(scale)), "utf-8")
    (folder / "my_model.py").write_text(MODEL, "utf-8")
    for file in folder.rglob("*.py"):
        os.utime(file, (1_700_000_000 + scale, 1_700_000_000 + scale))  # older than this process: keys are made of it
    return folder / "my_model.py"


def test_a_model_file_imports_its_siblings(
    bringup: Bringup, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = model(tmp_path / "a")
    for words in ([file], ["a/my_model.py"], ["./a/my_model.py"]):
        monkeypatch.chdir(tmp_path)
        result = bringup("check", *words, "--checkpoint", small)
        assert result.exit_code == 0, result.output


def test_two_folders_have_their_own(tmp_path: Path) -> None:
    before, modules = list(sys.path), set(sys.modules)
    marks = [by_name(str(model(tmp_path / name, scale)))[0].graph.mark for name, scale in (("a", 2), ("b", 3))]
    assert [mark[:3] for mark in marks] == [(2, ("other", 2), "other"), (3, ("other", 3), "other")]
    assert [Path(mark[3]).parent.name for mark in marks] == ["a", "b"]
    assert sys.path == before
    new = {name for name in set(sys.modules) - modules if not name.startswith(("bringup.", "bringup_sibling_"))}
    assert not new & {"helpers", "second", "late", "parts", "parts.inner", "my_model"}
    with pytest.raises(ModuleNotFoundError):
        __import__("helpers")


def test_a_sibling_hides_nothing_from_others(tmp_path: Path) -> None:
    """It wins over an installed package in the user's own files, as a script's does, and nowhere else."""
    file = model(tmp_path / "a")
    (tmp_path / "a/click.py").write_text("MINE = True\n", "utf-8")
    (tmp_path / "a/json.py").write_text("raise ValueError('not this one')\n", "utf-8")
    (tmp_path / "a/bringup.py").write_text("raise ValueError('nor this')\n", "utf-8")
    text = MODEL.replace("import helpers\n", "import click, helpers, json, json.decoder\nassert click.MINE\n", 1)
    file.write_text(text, "utf-8")
    assert by_name(str(file))[0].name == "mine"
    import click

    assert not hasattr(click, "MINE")


def test_an_edited_sibling_is_run_anew(tmp_path: Path) -> None:
    file = model(tmp_path / "a", 2)
    first = by_name(str(file))[0].graph.mark
    model(tmp_path / "a", 5)
    assert (first[0], by_name(str(file))[0].graph.mark[0]) == (2, 5)


def test_an_adapter_file(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text("PREFIX = 'transformer.'\n", "utf-8")
    text = (ROOT / "adapters/gpt2.py").read_text("utf-8").replace("from __future__ import annotations\n", "")
    file = tmp_path / "mine.py"
    file.write_text(f"from names import PREFIX\n{text}", "utf-8")
    result = bringup("check", "--checkpoint", small, "--adapter", file)
    assert result.exit_code == 0, result.output
    wrong = file.read_text("utf-8").replace('S("{n}.{p}")', 'S("{n}x.{p}")', 1)
    assert wrong != file.read_text("utf-8")
    file.write_text(wrong, "utf-8")
    job = package.open_job(None, str(small), adapter=file)
    report = package.check(job)
    add_fixes(job, report)  # runs the edited text in a module of its own
    assert any(finding.fixes for finding in report.findings)
    assert repair(report, sys.stderr, write=True)
    assert bringup("check", "--checkpoint", small, "--adapter", file).exit_code == 0


def test_a_mistake_in_a_sibling_has_its_own_line(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    file = model(tmp_path / "a")
    (tmp_path / "a/second.py").write_text("\nSCALE = undefined\n", "utf-8")
    result = bringup("check", file, "--checkpoint", small)
    assert result.exit_code == 2
    assert "error[BU026]: `second.py` fails when it is run: NameError" in result.output
    assert "second.py:2" in result.output
    (tmp_path / "a/second.py").write_text("import no_such_module\n", "utf-8")
    assert "No module named 'no_such_module'" in bringup("check", file, "--checkpoint", small).output


def test_the_caches_keys_hold_the_siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are imported only later, from within a package, too."""
    monkeypatch.setattr(text_digests, "STARTED", float("inf"))  # the files are younger than this process
    file = model(tmp_path / "a")
    (tmp_path / "a/bringup.py").write_text("raise ValueError('not this one')\n", "utf-8")
    by_name(str(file))
    found = digests([file])
    assert found is not None
    names = {name.partition(" ")[2] for name in found}
    wanted = {"helpers.py", "second.py", "late.py", "deep.py", "my_model.py"}
    assert {f"a/{name}" for name in wanted} <= names
    assert {f"parts/{name}.py" for name in ("__init__", "inner", "other", "last")} <= names
    assert "a/bringup.py" not in names
    assert userfiles.folders_of(ROOT / "graphs/gpt2.py") == []
    for name in ("second.py", "deep.py", "parts/last.py"):
        (tmp_path / "a" / name).write_text("SCALE = 33\n", "utf-8")
        after = digests([file])
        assert after not in (found, None)
        found = after


@pytest.mark.slow
def test_compiled_in_forked_children_too(tmp_path: Path) -> None:
    """The stages are traced in children; an edited sibling is another program."""
    script = (
        "import sys, numpy as np, bringup\n"
        f"job = bringup.open_job(sys.argv[1], 'dummy', config={gpt2_config(**SMALL)!r})\n"
        "session = bringup.load(bringup.build(job, out=sys.argv[2], target='torch', buckets=(8,), force=True))\n"
        "print(float(session.prefill([1, 2, 3])[-1][0]))\n"
    )
    env = os.environ | {"BRINGUP_COMPILE_CACHE": str(tmp_path / "cache")}
    given: list[float] = []
    for scale in (1, 2):
        file = model(tmp_path / "a", scale)
        command = [sys.executable, "-c", script, str(file), str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        given.append(float(done.stdout.split()[-1]))
    assert given[1] == pytest.approx(2 * given[0], rel=1e-5)
