"""Families that are not bringup's: of folders that BRINGUP_MODELS names; those that an earlier one hides."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from bringup.diagnostics import BringupError
from bringup.graphs import registry
from bringup.graphs.family import Family
from bringup.graphs.registry import FAMILIES, by_architecture, by_name

START = "from dataclasses import replace\nfrom bringup.graphs.registry import FAMILIES\n"


def text(name: str, architecture: str, more: str = "") -> str:
    return f"{START}{more}family = replace(FAMILIES[0], name={name!r}, architectures=({architecture!r},))\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that the variable names, as the second of two."""
    monkeypatch.setenv("BRINGUP_MODELS", os.pathsep.join([str(tmp_path / "empty"), str(tmp_path / "models")]))
    (tmp_path / "empty").mkdir()
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def added(failed: list[BringupError] | None = None) -> list[str]:
    return [family.name for family in registry.families(failed)][len(FAMILIES) :]


def test_a_file_of_a_folder_is_a_family(folder: Path) -> None:
    """By name and by architecture; it imports the files next to it, and those without a family are no error."""
    (folder / "names.py").write_text("ARCHITECTURE = 'EagleForCausalLM'\n")
    (folder / "eagle.py").write_text(text("eagle", "EagleForCausalLM", "from names import ARCHITECTURE\n"))
    for name in ("_private", "test_eagle", "conftest"):
        (folder / f"{name}.py").write_text("raise SystemExit('it runs')\n")
    failed: list[BringupError] = []
    assert (added(failed), failed) == (["eagle"], [])
    assert by_architecture(["EagleForCausalLM"]).name == "eagle"
    assert by_name("eagle")[0].name == "eagle"
    assert registry.is_registered("eagle")


def test_a_file_that_changes_is_run_again(folder: Path) -> None:
    (folder / "bird.py").write_text(text("bird", "BirdForCausalLM"))
    assert by_architecture(["BirdForCausalLM"]) is by_architecture(["BirdForCausalLM"]), "run once"
    (folder / "bird.py").write_text(text("bird", "FalconForCausalLM"))
    assert by_architecture(["FalconForCausalLM"]).name == "bird"


@pytest.mark.parametrize(("body", "said"), [("1 / 0\n", "ZeroDivisionError"), ("def f(:\n", "SyntaxError")])
def test_a_file_that_fails_hides_no_other(folder: Path, body: str, said: str) -> None:
    (folder / "broken.py").write_text(f"x = 1\n{body}")
    (folder / "eagle.py").write_text(text("eagle", "EagleForCausalLM"))
    failed: list[BringupError] = []
    assert added(failed) == ["eagle"]
    (finding,) = failed[0].findings
    assert (finding.code, finding.where and finding.where.line) == ("BU026", 2)
    assert said in finding.message
    with pytest.raises(BringupError) as caught:
        by_name("falcon")
    assert [each.code for each in caught.value.findings] == ["BU002", "BU026"], "it may be the one that is missing"


def test_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRINGUP_MODELS", str(tmp_path / "lost"))
    failed: list[BringupError] = []
    assert added(failed) == []
    assert "BRINGUP_MODELS names" in failed[0].findings[0].message


def test_a_folder_of_folders_is_named_with_those_that_have_the_files(folder: Path) -> None:
    (folder / "eagle").mkdir()
    (folder / "eagle" / "eagle.py").write_text(text("eagle", "EagleForCausalLM"))
    with pytest.raises(BringupError) as caught:
        by_architecture(["Olmo3ForCausalLM"])
    unknown, warning = caught.value.findings
    assert warning.help == f"name the folders of the files: BRINGUP_MODELS={folder / 'eagle'}"
    assert unknown.help.startswith("did you mean `Olmo2ForCausalLM`? if not, `bringup init"), "often another model"


def offer(monkeypatch: pytest.MonkeyPatch, *families: Family) -> None:
    """As packages would: one entry point each."""
    module = ModuleType("offered")
    for family in families:
        setattr(module, family.name, family)
    monkeypatch.setitem(__import__("sys").modules, "offered", module)
    points = [EntryPoint(family.name, f"offered:{family.name}", "bringup.models") for family in families]

    def found(group: str, name: str = "") -> list[EntryPoint]:
        return [point for point in points if name in ("", point.name)]

    monkeypatch.setattr(registry.plugins, "points", found)


LLAMA = next(family for family in FAMILIES if family.name == "llama")


def test_an_architecture_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is used, and the other by its name; with quantisations of its own it hides nothing."""
    special = replace(LLAMA, name="special", quantisations=("marlin",))
    offer(monkeypatch, replace(LLAMA, name="fast"), special)
    failed: list[BringupError] = []
    assert added(failed) == ["fast", "special"]
    (finding,) = (finding for error in failed for finding in error.findings)
    assert finding.code == "BU128"
    assert "is supported by bringup's `llama`" in finding.message
    assert "the family `fast` (plugin `fast`" in finding.message
    assert by_architecture(["LlamaForCausalLM"]).name == "llama"
    assert by_name("fast")[0].name == "fast"


def test_a_name_that_is_taken(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A folder's family is used, the package's of that name is not; one that is offered twice is one."""
    (folder / "eagle.py").write_text(text("eagle", "EagleForCausalLM"))
    bird = replace(LLAMA, name="bird", architectures=("BirdForCausalLM",))
    offer(monkeypatch, replace(LLAMA, name="eagle", architectures=("OtherForCausalLM",)), bird, bird)
    failed: list[BringupError] = []
    assert added(failed) == ["eagle", "bird"]
    assert [error.findings[0].code for error in failed] == ["BU128"]
    assert "the family `eagle` of plugin `eagle`" in failed[0].findings[0].message
    assert by_architecture(["BirdForCausalLM"]).name == "bird"


def test_a_path_is_no_name(folder: Path, tmp_path: Path) -> None:
    """A file outside of the folders is not run, whatever its name. With a dot or slash first it is a path."""
    marker = tmp_path / "ran"
    (tmp_path / "outside.py").write_text(text("outside", "OutsideForCausalLM", f"open({str(marker)!r}, 'w').close()\n"))
    (folder / "inner").mkdir()
    (folder / "inner" / "outside.py").write_text((tmp_path / "outside.py").read_text("utf-8"))
    codes = {
        str(tmp_path / "outside"): "BU034",
        "../outside": "BU034",
        "inner/outside": "BU002",
        "./inner/outside": "BU034",
    }
    for name, code in codes.items():
        with pytest.raises(BringupError) as caught:
            by_name(name)
        assert caught.value.findings[0].code == code
    assert not marker.exists()


def test_a_folder_that_cannot_be_reached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that may not be entered: by name, too, the other folders serve, and the message lists it."""
    (folder / "eagle.py").write_text(text("eagle", "EagleForCausalLM"))
    monkeypatch.setenv("BRINGUP_MODELS", os.pathsep.join(["x" * 300, str(folder)]))
    assert by_name("eagle")[0].name == "eagle"
    with pytest.raises(BringupError) as caught:
        by_name("falcon")
    assert [each.code for each in caught.value.findings] == ["BU002", "BU026"]


def test_a_folder_that_is_named_twice(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a link, by `..`, and by a link to one file: nothing hides itself."""
    own_class = text("eagle", "EagleForCausalLM").replace("name=", "graph=type('Eagle', (), {}), name=")
    (folder / "eagle.py").write_text(own_class)
    (folder / "eagle_too.py").symlink_to(folder / "eagle.py")
    (tmp_path / "link").symlink_to(folder)
    folders = [folder, tmp_path / "link", folder / ".." / "models"]
    monkeypatch.setenv("BRINGUP_MODELS", os.pathsep.join(map(str, folders)))
    failed: list[BringupError] = []
    assert (added(failed), failed) == (["eagle"], [])


@pytest.mark.parametrize("broken", [False, True])
def test_a_sibling_that_changes_is_run_again(folder: Path, broken: bool) -> None:
    """With the files that import it; a file that fails does not have the others run each time."""
    (folder / "names.py").write_text("ARCHITECTURE = 'BirdForCausalLM'\n")
    (folder / "bird.py").write_text(text("bird", "x", "import names\n").replace("'x'", "names.ARCHITECTURE"))
    if broken:
        (folder / "broken.py").write_text("import names\n1 / 0\n")
    assert by_architecture(["BirdForCausalLM"]) is by_architecture(["BirdForCausalLM"]) is by_name("bird")[0]
    (folder / "names.py").write_text("ARCHITECTURE = 'FalconForCausalLM'\n")
    assert by_architecture(["FalconForCausalLM"]) is by_name("bird")[0]
