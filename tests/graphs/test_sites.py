"""Where a parameter and a rule are declared: in a user's file too whose folders have the names of bringup's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.core.module import Param
from bringup.graphs.layers.linear import Linear

SOURCE = """from bringup.adapters.algebra.expr import S
from bringup.adapters.planning.adapter import Adapter
from bringup.graphs.layers.linear import Linear
from bringup.graphs.core.module import Param

weight = Param("out:m in:m", m=4)
layer = Linear("out:m in:m", m=4)
adapter = Adapter("mine")
adapter["x"] = S("y")
adapter.drop("z", why="no reason")
"""


def loaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE, "utf-8")
    spec = importlib.util.spec_from_file_location("of_a_user", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "of_a_user", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        "graphs/layers/mine.py",
        "bringup/graphs/layers/mine.py",
        "graphs/core/module.py",
        "adapters/planning/adapter.py",
        "mine.py",
    ],
)
def test_a_users_line_is_named_whatever_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file = tmp_path / "of" / name
    module = loaded(file, monkeypatch)
    sites = [module.weight.site, module.layer.weight.site, module.adapter.rules[0].site, module.adapter.drops[0].site]
    assert [(site.file, site.line) for site in sites] == [(str(file), line) for line in (6, 7, 9, 10)]


def test_a_layer_of_ours_is_named_by_who_uses_it() -> None:
    sites = [Param("m", m=4).site, Linear("out:m in:m", m=4, bias=True).bias.site, adapter_here().rules[0].site]
    assert {site.file for site in sites} == {__file__}


def adapter_here() -> Adapter:
    adapter = Adapter("mine")
    adapter["x"] = None  # type: ignore[assignment]  what the rule expects does not matter here
    return adapter
