"""Installed packages that offer families and readers: one that fails is a warning, and hides no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bringup import plugins
from bringup.cli.errors import culprit
from bringup.cli.main import cli

GOOD = """'''Good models: theirs.'''
from bringup.adapters import gpt2
from bringup.graphs.gpt2 import GPT2, GPT2Config
from bringup.graphs.family import Family

good = Family(name="good", graph=GPT2, config=GPT2Config, adapter=gpt2.adapter, architectures=("GoodForCausalLM",))
other = Family(name="under-another-name", graph=GPT2, config=GPT2Config, adapter=gpt2.adapter)
lost = Family(name="lost", graph="no_such.module:Graph", config=GPT2Config, adapter=gpt2.adapter)
"""
BROKEN = {
    "raises": ("x = 1\nraise ValueError('not today')\n", "bad:family", "ValueError: not today"),
    "leaves": ("import sys\nsys.exit(0)\n", "bad:family", "SystemExit: 0"),
    "no module": (None, "bad:family", "ModuleNotFoundError: No module named 'bad'"),
    "no attribute": ("x = 1\n", "bad:family", "AttributeError: module 'bad' has no attribute 'family'"),
    "no syntax": ("def f(:\n", "bad:family", "SyntaxError: invalid syntax"),
    "another type": ("family = 7\n", "bad:family", "is a int, not a Family"),
    "no reference": ("x = 1\n", "not a reference", "it does not name MODULE:OBJECT"),
    "architectures": (
        "from bringup.graphs.family import Family\n"
        "family = Family(name='bad', graph='', config='', adapter='', architectures='BadForCausalLM')\n",
        "bad:family",
        "TypeError: a Family has a text as its name, and a tuple of texts as its architectures",
    ),
}


def package(folder: Path, name: str, points: str, source: str | None = None) -> None:
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(points)
    if source is not None:
        (folder / f"{name}.py").write_text(source)


def run(folder: Path, *words: object) -> Result:
    """The command line, where the packages in a folder are installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        plugins._installed.cache_clear()
        culprit._plugins.cache_clear()
        try:
            return CliRunner().invoke(cli, [str(word) for word in words])
        finally:
            for path in folder.glob("*.py"):
                sys.modules.pop(path.stem, None)
            culprit._plugins.cache_clear()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    points = "[bringup.models]\ngood = good:good\nalias = good:other\nlost = good:lost\n"
    package(folder, "good", points, GOOD)
    return folder


@pytest.mark.parametrize("name", BROKEN)
def test_models_lists_the_others_and_warns(site: Path, name: str) -> None:
    source, value, said = BROKEN[name]
    package(site, "bad", f"[bringup.models]\nbad = {value}\n", source)
    done = run(site, "models")
    assert done.exit_code == 0
    assert "GoodForCausalLM" in done.stdout
    assert "under-another-name" in done.stdout
    assert f"warning[BU026]: plugin `bad` (`{value}`)" in done.stderr
    assert said in done.stderr
    assert "the package `bad`" in done.stderr
    assert "Traceback" not in done.stderr
    result = run(site, "check", "bad", "--checkpoint", "dummy")
    assert (result.exit_code, result.stdout.count("error[BU026]")) == (2, 1)
    assert said in result.stdout


def test_the_traceback_on_request(site: Path) -> None:
    package(site, "bad", "[bringup.models]\nbad = bad:family\n", BROKEN["raises"][0])
    done = run(site, "-v", "models")
    assert done.exit_code == 0
    assert "Traceback" in done.stderr
    assert "bad.py" in done.stderr


def test_a_broken_plugin_does_not_matter_to_others(site: Path, small: Path) -> None:
    package(site, "bad", "[bringup.models]\nbad = bad:family\n", BROKEN["raises"][0])
    for name in ("under-another-name", "gpt2"):
        done = run(site, "check", name, "--checkpoint", small)
        assert (done.exit_code, done.stderr) == (0, ""), done.stdout
    config = json.loads((small / "config.json").read_text()) | {"architectures": ["GoodForCausalLM"]}
    (small / "config.json").write_text(json.dumps(config))
    done = run(site, "check", "good", "--checkpoint", small)
    assert (done.exit_code, done.stderr) == (0, ""), done.stdout
    assert run(site, "check", "--checkpoint", small).exit_code == 0


@pytest.mark.parametrize(("named", "code"), [(["nothing"], "BU002"), ([], "BU125")])
def test_what_nobody_serves_may_be_the_broken_one(site: Path, small: Path, named: list[str], code: str) -> None:
    package(site, "bad", "[bringup.models]\nbad = bad:family\n", BROKEN["raises"][0])
    config = json.loads((small / "config.json").read_text()) | {"architectures": ["OddForCausalLM"]}
    (small / "config.json").write_text(json.dumps(config))
    done = run(site, "check", *named, "--checkpoint", small, "--format", "json")
    findings = [(finding["code"], finding["severity"]) for finding in json.loads(done.stdout)["findings"]]
    assert findings == [(code, "error"), ("BU026", "warning")]
    verbose = run(site, "-v", "check", *named, "--checkpoint", small)
    assert "ValueError: not today" in verbose.stderr


@pytest.mark.parametrize("name", ["raises", "no module", "no reference"])
def test_a_broken_reader(site: Path, name: str) -> None:
    source, value, said = BROKEN[name]
    package(site, "bad", f"[bringup.readers]\nodd = {value}\n", source)
    done = run(site, "check", "gpt2", "--checkpoint", "odd:thing")
    assert (done.exit_code, done.stdout.count("error[BU026]")) == (2, 1)
    assert said in done.stdout
    assert run(site, "check", "gpt2", "--checkpoint", "dummy").exit_code == 0


def test_a_registered_scheme_wins_over_a_file_of_that_name(site: Path, small: Path, tmp_path: Path) -> None:
    source = (
        "from bringup.adapters.sources.open_checkpoint import open_checkpoint\n"
        f"def read(src):\n    return open_checkpoint({str(small)!r})\n"
    )
    package(site, "kept", "[bringup.readers]\nkept = kept:read\n", source)
    (tmp_path / "kept:x").mkdir()
    script = "import os; os.chdir({!r}); from bringup.adapters.sources.open_checkpoint import open_checkpoint as o; {}"
    for word, found in (("kept:x", True), ("./kept:x", False)):
        text = script.format(str(tmp_path), f"print(len(o({word!r}).headers))")
        env = os.environ | {"PYTHONPATH": str(site)}
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env=env)
        assert (done.returncode == 0) is found, done.stderr
        assert found or "no weights in `./kept:x`" in done.stderr or "no weights in `kept:x`" in done.stderr
