"""Which graph serves what: by name, by architecture, by file; clear words when none does."""

from __future__ import annotations

from dataclasses import replace

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
