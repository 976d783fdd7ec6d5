"""A model's source code is all that its files import, however the import is written; doubt is no key."""

from __future__ import annotations

import importlib
import importlib.util
import os
import py_compile
import sys
from pathlib import Path

import numpy as np
import pytest

from bringup.compile.bundle.bundle_key import CacheKeys
from bringup.compile.cache import source_digest, text_digests
from bringup.compile.job import open_job
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.stage_key import spelled
from bringup.compile.targets.selection import select
from bringup.graphs.core.module import Module

CONFIG = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 1}
CONFIG |= {"n_head": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_ctx": 32}


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setattr(text_digests, "STARTED", float("inf"))


# The text of model.py, and the file that it imports.
IMPORTS = {
    "beside": ("import helpers", "helpers.py"),
    "in a function": ("def f():\n    from helpers import x", "helpers.py"),
    "relative": ("from .helpers import x", "helpers.py"),
    "relative, a module by name": ("from . import helpers", "helpers.py"),
    "relative, a package above": ("from ..other import x", "../other.py"),
    "a package around": ("import inner.part", "inner/__init__.py"),
    "in a package": ("from inner import part", "inner/part.py"),
    "of a helper": ("import first", "second.py"),
}


@pytest.mark.parametrize("name", IMPORTS)
def test_an_imported_file_counts(name, tmp_path):
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    for path in ("helpers.py", "../other.py", "inner/__init__.py", "inner/part.py", "second.py", "unused.py"):
        (folder / path).write_text("x = 1\n")
    (folder / "first.py").write_text("import second\n")
    text, imported = IMPORTS[name]
    model = folder / "model.py"
    model.write_text(text)
    before = source_digest.digests([model])
    assert before == source_digest.digests([model])
    (folder / "unused.py").write_text("x = 22\n")
    assert source_digest.digests([model]) == before
    (folder / imported).write_text("x = 22\n")
    assert source_digest.digests([model]) not in (before, None)


def test_a_module_loaded_by_a_computed_name_counts(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text("import importlib\nx = importlib.import_module('tables_' + 'seven')\n")
    (tmp_path / "tables_seven.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("tables_seven")
    before = source_digest.digests([tmp_path / "model.py"])
    (tmp_path / "tables_seven.py").write_text("x = 22\n")
    after = source_digest.digests([tmp_path / "model.py"])
    monkeypatch.delitem(sys.modules, "tables_seven")
    assert before not in (after, None)


@pytest.mark.parametrize("editable", [False, True])
def test_of_a_working_copy_the_files_count_and_of_a_package_its_version(editable, tmp_path, monkeypatch):
    name = f"house_{editable}".lower()
    package, info = tmp_path / "site" / name, tmp_path / "site" / f"{name}-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("x = 1\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    if editable:
        (info / "direct_url.json").write_text('{"url": "file:///somewhere", "dir_info": {"editable": true}}')
    monkeypatch.syspath_prepend(tmp_path / "site")
    model = tmp_path / "model.py"
    model.write_text(f"import {name}\n")
    before = source_digest.digests([model]) or {}
    assert before.get(f"package {name}") == (None if editable else "1.0")
    (package / "__init__.py").write_text("x = 22\n")
    assert (source_digest.digests([model]) != before) is editable


def test_byte_code_that_python_would_take_for_an_edited_file_is_doubt(tmp_path):
    """Python compares the size, and the time in whole seconds."""
    model = tmp_path / "model.py"
    model.write_text("x = 1\n")
    second = int(model.stat().st_mtime) * 10**9
    os.utime(model, ns=(second, second))
    place = Path(importlib.util.cache_from_source(str(model)))
    py_compile.compile(str(model), cfile=str(place))
    os.utime(place, ns=(second + 10**8, second + 10**8))
    assert source_digest.digests([model])
    model.write_text("x = 2\n")
    os.utime(model, ns=(second + 2 * 10**8, second + 2 * 10**8))
    assert source_digest.digests([model]) is None
    model.write_text("x = 33\n")  # another size: Python makes its byte code anew
    os.utime(model, ns=(second + 2 * 10**8, second + 2 * 10**8))
    assert source_digest.digests([model])


def test_a_file_that_cannot_be_read_is_doubt(tmp_path):
    assert source_digest.digests([tmp_path / "archive.zip" / "model.py"]) is None
    (tmp_path / "model.py").write_bytes(b"\xff\xfe not text")
    assert source_digest.digests([tmp_path / "model.py"]) is None


def test_an_adapter_file_counts_though_its_rules_are_written_in_another(tmp_path):
    (tmp_path / "table.py").write_text(
        "from bringup.adapters.algebra.expr import S\nfrom bringup.adapters.gpt2 import adapter as plain\n"
        "from bringup.adapters.algebra.values import fn\n"
        "def made(config, factor):\n    table = plain(config)\n    bias = S('transformer.ln_f.bias', 'm')\n"
        "    table['transformer.ln_f.bias'] = fn(lambda x: x * factor, bias, axes='m', m=32, dtype='float32')\n"
        "    return table\n"
    )
    adapter = tmp_path / "mine.py"
    adapter.write_text(
        "import sys\nsys.path.insert(0, __file__.rpartition('/')[0])\nimport table\n"
        "def adapter(config):\n    return table.made(config, 2)\n"
    )

    def weights() -> object:
        job = open_job("gpt2", "dummy", config=CONFIG, adapter=str(adapter))
        return CacheKeys.of(job, layout_of(job.graph, 32), select("torch")).weights

    before = weights()
    adapter.write_text(adapter.read_text().replace("2)", "3)"))
    assert weights() not in (before, None)


def test_settings_are_spelled_whole_or_not_at_all():
    long, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1
    assert repr(long) == repr(other)
    assert spelled(long) not in (spelled(other), None)
    assert spelled({"a": (1, 2.5), "b": None}) == spelled({"a": (1, 2.5), "b": None})
    assert spelled(1) != spelled(True)

    def inner() -> type:
        class Local(Module):
            pass

        return Local

    assert spelled(inner()) is None  # what its functions close over shows nowhere
    assert spelled(object()) is None
    assert spelled([object()]) is None
