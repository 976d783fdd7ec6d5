"""The house rules: folders, links and package list agree; imports point one way; files stay small; starts are light."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAPPED = ("graphs", "adapters", "compile")
SOURCES = [file for folder in ("bringup", *MAPPED) for file in (ROOT / folder).rglob("*.py")]


@pytest.fixture(scope="module")
def setuptools_table() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]


def test_every_package_is_listed(setuptools_table):
    found = {"bringup"}
    for folder in ("bringup", *MAPPED):
        inner = [init.parent.relative_to(ROOT) for init in (ROOT / folder).rglob("__init__.py")]
        names = {".".join(path.parts) for path in inner if not set(path.parts[1:2]) & set(MAPPED)}
        found |= {name if folder == "bringup" else f"bringup.{name}" for name in names}
    assert found == set(setuptools_table["packages"])


def test_links_point_at_the_mapped_folders(setuptools_table):
    for folder in MAPPED:
        assert setuptools_table["package-dir"][f"bringup.{folder}"] == folder
        assert (ROOT / "bringup" / folder).resolve() == ROOT / folder


def test_imports_point_one_way():
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_files_are_small():
    lengths = {file: len(file.read_text("utf-8").splitlines()) for file in set(SOURCES)}
    assert {str(file) for file, length in lengths.items() if length > 300} == set()
    assert statistics.median(lengths.values()) < 90


def loaded(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running some code."""
    text = f"{code}\nimport sys; print(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("module", ["bringup", "bringup.cli.main", "bringup.compile.job", "bringup.graphs.llama"])
def test_imports_are_light(module):
    assert not loaded(f"import {module}") & {"torch", "numpy", "rich", "iree", "transformers", "gguf", "tokenizers"}


def test_examples_import_only_public_names():
    for file in (ROOT / "examples").rglob("*.py"):
        for line in file.read_text("utf-8").splitlines():
            if line.startswith(("import bringup", "from bringup")):
                top = line.split()[1]
                assert top in {"bringup"} or top.startswith(tuple(f"bringup.{name}" for name in MAPPED)), line


def test_a_folder_named_bringup_is_not_taken_for_the_package(tmp_path):
    """As a clone is, for Python that was started in the folder around it."""
    (tmp_path / "bringup" / "graphs").mkdir(parents=True)
    code = "import bringup, bringup.graphs.gpt2; print(bringup.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
