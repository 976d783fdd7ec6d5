"""The house rules: folders, links, package list, direction of imports, sizes of files, light starts, plain words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import bringup
import bringup.adapters
import bringup.compile
import bringup.graphs
from bringup.graphs.registry import FAMILIES
from tests import import_graph, plain_words

ROOT = Path(__file__).parent.parent
MAPPED = ("graphs", "adapters", "compile")
SOURCES = [file for folder in ("bringup", *MAPPED) for file in (ROOT / folder).rglob("*.py")]
PACKAGES = {file.resolve() for file in SOURCES}


@pytest.fixture(scope="module")
def setuptools_table() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]


def test_every_package_is_listed(setuptools_table):
    found = {"bringup", "bringup.docs"}  # which has pages only
    for folder in ("bringup", *MAPPED):
        inner = [init.parent.relative_to(ROOT) for init in (ROOT / folder).rglob("__init__.py")]
        names = {".".join(path.parts) for path in inner if not set(path.parts[1:2]) & set(MAPPED)}
        found |= {name if folder == "bringup" else f"bringup.{name}" for name in names}
    assert found == set(setuptools_table["packages"])


def test_links_point_at_the_mapped_folders(setuptools_table):
    for folder in (*MAPPED, "docs"):
        assert setuptools_table["package-dir"][f"bringup.{folder}"] == folder
        assert (ROOT / "bringup" / folder).resolve() == ROOT / folder


def test_imports_point_one_way():
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_files_are_small():
    lengths = {file: len(file.read_text("utf-8").splitlines()) for file in set(SOURCES)}
    assert {str(file) for file, length in lengths.items() if length > 300} == set()


def test_benchmarks_run_as_modules():
    """`python -m benchmarks.NAME`: files of a folder are imported by their complete names.

    Interpreters of other tools run some files by their paths.
    """
    by_path = {"faults_max.py", "faults_transformers.py", "compile_max.py", "prefill_engine.py"}
    files = [file for file in (ROOT / "benchmarks").rglob("*.py") if file.name not in by_path]
    siblings = {file.stem for file in (ROOT / "benchmarks").rglob("*.py")} | {"cards", "fuzz"}
    bare = [
        f"{file.relative_to(ROOT)}: {node.module}"
        for file in files
        for node in import_graph.imports(file)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in siblings
    ]
    assert len(files) > 50
    assert bare == []
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "Makefile", *(ROOT / "benchmarks").glob("*.md")]
    scripts = [page.name for page in pages if re.search(r"python\S* benchmarks/", page.read_text("utf-8"))]
    assert scripts == []


def test_the_import_graph_has_no_cycle(capsys):
    import_graph.main()
    assert "compile/targets: From a program to executable code" in capsys.readouterr().out


def test_a_cycle_is_found(monkeypatch):
    monkeypatch.setattr(import_graph, "graph", lambda: {"a": {"b"}, "b": {"a"}})
    with pytest.raises(SystemExit, match="cycle"):
        import_graph.main()


def test_every_folder_says_what_it_holds():
    folders = {str(file.parent.relative_to(ROOT)) for file in import_graph.sources().values()}
    assert folders >= {"graphs/core", "adapters/algebra", "compile/check", "bringup/system"}
    assert {folder for folder in folders if not import_graph.purpose(folder)} == set()


def test_folders_are_small():
    """Models apart: one file a family in graphs/, adapters/ and adapters/dialects/."""
    models = {family.name for family in FAMILIES}
    held: dict[Path, set[str]] = {}
    for file in import_graph.sources().values():
        held.setdefault(file.parent.relative_to(ROOT), set()).add(file.stem)
    assert {str(folder): len(stems - models) for folder, stems in held.items() if len(stems - models) > 20} == {}


def test_names_are_imported_from_the_file_that_defines_them():
    """Not from a file that imports them itself, unless `as` themselves: these are its own."""
    modules = import_graph.sources()
    imports = [
        (name, node.module, alias.name, alias.asname)
        for name, file in modules.items()
        for node in import_graph.imports(file)
        if isinstance(node, ast.ImportFrom) and node.module in modules
        for alias in node.names
    ]
    borrowed = {(name, alias) for name, _, alias, own in imports if own is None}
    assert [f"{name}: {alias} of {module}" for name, module, alias, _ in imports if (module, alias) in borrowed] == []


def loaded(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running some code."""
    text = f"{code}\nimport sys; print(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("module", ["bringup", "bringup.cli.main", "bringup.compile.job", "bringup.graphs.llama"])
def test_imports_are_light(module):
    assert not loaded(f"import {module}") & {"torch", "numpy", "rich", "iree", "transformers", "gguf", "tokenizers"}


FACADES = {module.__name__: module for module in (bringup, bringup.graphs, bringup.adapters, bringup.compile)}
READ_BY_USERS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "bringup/codes").glob("*.md")]
READ_BY_USERS += (ROOT / "examples").rglob("*.py")
# Their examples plant a mistake in bringup itself, or give it another GPU.
PLANTED = ("BU501.md", "BU504.md", "BU615.md", "BU616.md", "BU617.md", "BU618.md", "BU630.md", "BU631.md", "BU704.md")


def loaded_names(module: str) -> list[str]:
    """`dir` of a module in a fresh interpreter, which has imported none of its names."""
    text = f"import sys, {module}; print(*dir(sys.modules['{module}']))"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("name", sorted(FACADES))
def test_a_facade_has_every_name_that_it_lists(name):
    """And type checkers read the same names."""
    module = FACADES[name]
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    typed = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "bringup." in f"{node.module}."]
    names = {alias.name for node in typed for alias in node.names if alias.asname == alias.name}
    assert names == set(module.__all__) - {"__version__"}
    assert {each for each in module.__all__ if getattr(module, each, None) is None} == set()
    assert set(module.__all__) <= set(loaded_names(name))
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018


def test_no_page_has_a_path_of_the_machine_that_wrote_it():
    """What a tool printed is on a page without the folders of its environment and of the benchmarks."""
    path = re.compile(r"/(?:tmp|root|home|work)/\S+/(?:site-packages|benchmarks)/\S+")
    assert [found for file in READ_BY_USERS for found in path.findall(file.read_text("utf-8"))] == []


def test_users_are_shown_only_public_names():
    """`from bringup.adapters import S`, not where S is written; a model has a module of its own."""
    models = {f"bringup.{part}.{family.name}" for part in ("graphs", "adapters") for family in FAMILIES}
    lines = re.compile(r"^(?:from (bringup[\w.]*) import (\([^)]*\)|[^\n#]*)|import (bringup[\w.]*))", re.MULTILINE)
    found = 0
    for file in READ_BY_USERS:
        for source, names, whole in lines.findall(file.read_text("utf-8")):
            found += 1
            if file.name in PLANTED:
                continue
            where = f"{file.relative_to(ROOT)}: {source or whole}"
            assert (source or whole) in FACADES.keys() | models, where
            for each in re.findall(r"\w+", names) if source in FACADES else ():
                assert each in FACADES[source].__all__ or f"{source}.{each}" in models, f"{where} has no {each}"
    assert found > 30


def test_a_folder_named_bringup_is_not_taken_for_the_package(tmp_path):
    """As a clone is, for Python that was started in the folder around it."""
    (tmp_path / "bringup" / "graphs").mkdir(parents=True)
    code = "import bringup, bringup.graphs.gpt2; print(bringup.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@cache
def private_words(file: Path) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """The identifiers and the texts of a file that have one, with their lines: parsing takes longest."""
    tree = ast.parse(file.read_text("utf-8"))
    private = plain_words.OF_PACKAGES if file in PACKAGES else plain_words.PRIVATE
    return list(plain_words.identifiers(tree, private)), list(plain_words.texts(tree)) if file in PACKAGES else []


@pytest.mark.parametrize("folder", ["bringup", *MAPPED, "tests", "benchmarks", "examples"])
def test_identifiers_use_the_fields_terms(folder):
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, name in private_words(file)[0]
    ]
    assert found == []


def test_texts_for_users_are_plain():
    found = [f"{file}:{line}: {text}" for file in sorted(PACKAGES) for line, text in private_words(file)[1]]
    assert found == []


# Measurements, and what other tools print.
MEASURED = ("cpu-performance.md", "faults.md", "faults-quantised.md", "lora-faults.md")


def test_pages_are_plain():
    pages = [file for file in READ_BY_USERS if file.suffix == ".md" and file.name not in MEASURED]
    found = [
        f"{file.relative_to(ROOT)}: {text}" for file in pages for text in plain_words.phrases(file.read_text("utf-8"))
    ]
    assert found == []


def test_private_words_are_found():
    code = 'def as_told(x):\n    "kept"\n    said = x\n'
    code += '    raise fail("BU001", f"{x.madeOf} was made", help="what is meant")\n'
    tree = ast.parse(code)
    assert list(plain_words.identifiers(tree)) == [(1, "as_told"), (3, "said"), (4, "madeOf")]
    assert {text for _, text in plain_words.texts(tree)} == {"what is meant", " was made"}
    (phrase,) = plain_words.texts(ast.parse('fail("BU001", "weights in few bits")'))
    assert phrase == (1, "weights in few bits")
    assert list(plain_words.phrases("Give whole\nnumbers.\n```text\nside by side\n```\n")) == ["whole numbers"]
