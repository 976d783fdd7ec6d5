"""Which graph supports what: by name, by architecture, by file; clear words when none does."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from bringup.diagnostics import BringupError
from bringup.graphs import registry
from bringup.graphs.registry import FAMILIES, by_architecture, by_name


def test_every_family_loads():
    for family in FAMILIES:
        assert family.load("config").family == family.name
        assert callable(family.load("adapter"))


def test_first_known_architecture_wins():
    assert by_architecture(["SomethingElse", "MistralForCausalLM", "GPT2LMHeadModel"]).name == "llama"


def test_no_architecture():
    with pytest.raises(BringupError, match=r"BU125: config.json lists no `architectures`\n.*name the family as MODEL"):
        by_architecture([])


def test_unknown_architecture_suggests():
    with pytest.raises(BringupError, match="BU125") as caught:
        by_architecture(["LlamaForCausalML"])
    assert "LlamaForCausalLM" in caught.value.findings[0].help


def test_unknown_name_suggests():
    with pytest.raises(BringupError, match="BU002") as caught:
        by_name("gtp2")
    assert "gpt2" in caught.value.findings[0].help


def test_two_packages_that_serve_an_architecture_are_an_error(monkeypatch):
    twice = [replace(FAMILIES[0], name=name, architectures=("FalconForCausalLM",)) for name in ("falcon", "eagle")]
    monkeypatch.setattr(registry, "families", lambda failed=None: (*FAMILIES, *twice))
    with pytest.raises(BringupError, match=r"BU126: .*`falcon` and `eagle`"):
        by_architecture(["FalconForCausalLM"])
    assert by_architecture(["GPT2LMHeadModel"]).name == "gpt2"


def test_our_families_share_no_architecture():
    names = [name for family in FAMILIES for name in family.architectures]
    assert len(names) == len(set(names))


def test_broken_import_in_a_model_file_is_that_error(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import module_that_does_not_exist\n")
    with pytest.raises(ModuleNotFoundError, match="module_that_does_not_exist"):
        by_name(str(file))


def test_a_model_file_needs_a_family(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n")
    with pytest.raises(BringupError, match="BU004"):
        by_name(str(file))


def test_a_second_class_by_architecture_and_quantisation(monkeypatch):
    """Llama in one way of quantisation has a class of its own; in others, and in none, it is ours."""
    special = replace(FAMILIES[0], name="special", architectures=("LlamaForCausalLM",), quantisations=("marlin",))
    monkeypatch.setattr(registry, "families", lambda failed=None: (*FAMILIES, special))
    assert by_architecture(["LlamaForCausalLM"], "marlin").name == "special"
    assert by_architecture(["LlamaForCausalLM"], "fp8").name == "llama"
    assert by_architecture(["LlamaForCausalLM"]).name == "llama"
    twice = (*FAMILIES, special, replace(special, name="another"))
    monkeypatch.setattr(registry, "families", lambda failed=None: twice)
    with pytest.raises(BringupError, match=r"BU126: .*`special` and `another`"):
        by_architecture(["LlamaForCausalLM"], "marlin")


MODULE = """
from bringup.graphs import Family
from bringup.adapters import llama
from bringup.graphs.llama import Llama, LlamaConfig

family = Family(name="{0}", graph=Llama, config=LlamaConfig, adapter=llama.adapter, architectures=("{0}ForCausalLM",))
"""


def test_the_families_of_a_package_are_found(monkeypatch, tmp_path):
    """An entry point names the package; a module in it is a family, without a line for it anywhere."""
    package = tmp_path / "offered_models"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("eagle", "falcon"):
        (package / f"{name}.py").write_text(MODULE.format(name))
    (package / "helper.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("animals", "offered_models", "bringup.models")
    monkeypatch.setattr(registry.plugins, "points", lambda group, name="": [point] if name in ("", "animals") else [])
    assert by_architecture(["falconForCausalLM"]).name == "falcon"
    assert by_name("eagle")[0].name == "eagle"
    (package / "falcon.py").unlink()
    (package / "eagle.py").unlink()


def test_a_package_without_a_family(monkeypatch, tmp_path):
    (tmp_path / "empty_models").mkdir()
    (tmp_path / "empty_models" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("none", "empty_models", "bringup.models")
    monkeypatch.setattr(registry.plugins, "points", lambda group, name="": [point])
    failed = []
    assert list(registry.families(failed)) == list(FAMILIES)
    assert "without a `family`" in failed[0].findings[0].message


def test_a_package_of_families(tmp_path, monkeypatch):
    """Its private modules are not run, and one that fails hides none of the others."""
    package = tmp_path / "package_of_families"
    package.mkdir()
    start = "from dataclasses import replace\nfrom bringup.graphs.registry import FAMILIES\n"
    texts = {
        "__init__": "",
        "__main__": "raise SystemExit('it runs')\n",
        "_private": "raise ValueError('private')\n",
        "broken": "raise ValueError('not today')\n",
        "eagle": start + "family = replace(FAMILIES[0], name='eagle', architectures=('EagleForCausalLM',))\n",
    }
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("birds", package.name, "bringup.models")
    monkeypatch.setattr(registry.plugins, "points", lambda group, name="": [point] if name in ("", "birds") else [])
    failed: list[BringupError] = []
    assert [family.name for family in registry.families(failed)][len(FAMILIES) :] == ["eagle"]
    (error,) = failed
    assert error.findings[0].code == "BU026"
    assert "has a module `broken` that cannot be loaded: ValueError: not today" in error.findings[0].message
    assert by_name("eagle")[0].name == "eagle"
