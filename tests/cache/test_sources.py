"""A model's source code is all that its files import, however the import is written; doubt is no key."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import py_compile
import subprocess
import sys
import time
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
from bringup.graphs.decoder import PreNormLayer
from bringup.graphs.model_folders import file_of
from bringup.graphs.registry import by_architecture, by_name

CONFIG = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 1}
CONFIG |= {"n_head": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_ctx": 32}


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setattr(text_digests, "STARTED", float("inf"))


def test_the_engine_is_read_once_for_keys_of_one_moment(monkeypatch):
    """A file with an excluded body is read once more; outside of the block each key looks at the files again."""
    looked: list[str] = []

    def digest_of(file: str, left_out: frozenset[str] = frozenset()) -> str:
        looked.append(file)
        return real(file, left_out)

    real = source_digest.digest_of
    monkeypatch.setattr(source_digest, "digest_of", digest_of)
    body = source_digest.body_of(PreNormLayer, "forward")
    assert body
    first, other = source_digest.digests(()), source_digest.digests((), [body])
    files = len(looked) // 2
    assert first != other
    with source_digest.engine_read_once():
        looked.clear()
        for _ in range(3):
            assert (source_digest.digests(()), source_digest.digests((), [body])) == (first, other)
        assert len(looked) == files + 1
        assert looked[-1] == str(body.file)
    looked.clear()
    assert source_digest.digests(()) == source_digest.digests(()) == first
    assert len(looked) == 2 * files


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


# The family of a folder with others; computed names are not in its text.
SHARED_FOLDER = {
    "a_part.py": "SCALE = 1\n",
    "bird.py": "import bird_parts.first, shared\nbirds = __import__('bird_' + 'tables')\n",
    "bird_parts/__init__.py": "",
    "bird_parts/first.py": "x = 1\n",
    "bird_tables.py": "x = 1\n",
    "eagle.py": "import shared\npart = __import__('a_' + 'part')\nfrom bringup.graphs.registry import FAMILIES\n"
    "from dataclasses import replace\nfamily = replace(FAMILIES[0], name='eagle', architectures=('Eagle',))\n",
    "shared.py": "x = 1\n",
}


def test_other_models_of_a_folder_are_in_no_key(tmp_path, monkeypatch):
    """By name only the model's file is run, by architecture all: the keys are the same, and hold its own imports."""
    found = {}
    for way in ("name", "architecture"):
        folder = tmp_path / way / "models"
        (folder / "bird_parts").mkdir(parents=True)
        for name, text in SHARED_FOLDER.items():
            (folder / name).write_text(text)
        monkeypatch.setenv("BRINGUP_MODELS", str(folder))
        family = by_name("eagle")[0] if way == "name" else by_architecture(["Eagle"])
        assert file_of(family) == folder / "eagle.py"
        for root in ("eagle.py", "shared.py"):  # of a bundle, and of a stage whose class is in a shared file
            found[way, root] = source_digest.digests([folder / root])
        names = {name.partition(" ")[2] for name in found[way, "shared.py"]}
        assert {"models/eagle.py", "models/a_part.py", "models/shared.py"} <= names
        assert not [name for name in names if "bird" in name]
        (folder / "a_part.py").write_text("SCALE = 22\n")
        assert source_digest.digests([folder / "eagle.py"]) not in (found[way, "eagle.py"], None)
    for root in ("eagle.py", "shared.py"):
        assert found["name", root] == found["architecture", root]


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


def test_a_method_that_was_replaced_for_a_while_leaves_no_trace(monkeypatch):
    """As a test or a notebook does: what counts are the methods of now."""

    class Layer(Module):
        def forward(self, x):
            return x

    plain = eval(compile("lambda self, x: 2 * x", "/replaced.py", "eval"))
    with monkeypatch.context() as patch:
        patch.setattr(Layer, "forward", plain)
        assert source_digest.files_of(Layer) == {Path(__file__), Path("/replaced.py")}
    assert source_digest.files_of(Layer) == {Path(__file__)}


def test_a_file_that_cannot_be_read_is_doubt(tmp_path):
    assert source_digest.digests([tmp_path / "archive.zip" / "model.py"]) is None
    (tmp_path / "model.py").write_bytes(b"\xff\xfe not text")
    assert source_digest.digests([tmp_path / "model.py"]) is None


IMPORTED_LATER = """
import importlib, json, sys
from bringup.compile.bundle.bundle_key import weights_inputs
from bringup.compile.job import open_job

def inputs():
    return weights_inputs(open_job("gpt2", "dummy", config=json.loads(sys.argv[1]), adapter=sys.argv[2] or None), 0)

before = inputs()
new = [name for name in ("bringup.adapters.gpt2", "bringup.adapters.dialects.gpt2") if name not in sys.modules]
for name in new:
    importlib.import_module(name)
assert before and inputs() == before
print(len(new))
"""


@pytest.mark.parametrize(
    ("adapter", "new"), [("", 1), ("rules.py", 2)], ids=["the family's adapter", "an adapter file"]
)
def test_what_a_process_has_imported_is_in_no_key(adapter, new, tmp_path):
    """One that read a GGUF file or used another adapter before has the keys of one that did not."""
    rules = Path(__file__).parents[2] / "adapters" / "gpt2.py"
    (tmp_path / "rules.py").write_text(rules.read_text("utf-8"))
    os.utime(tmp_path / "rules.py", (0, 0))
    time.sleep(0.1)  # a file of this moment has no key
    command = [sys.executable, "-c", IMPORTED_LATER, json.dumps(CONFIG), adapter]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{new}\n"), done.stderr


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
