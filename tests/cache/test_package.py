"""An edit of any file of the package changes the key of all that the file can affect, and of nothing that it cannot."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cache.mini import Mini
from tests.package_copy import files, installed

# What shows results: nothing that makes one imports it, as a test below reads from every file.
APART = ("bringup/cli/", "bringup/render/")
# The entry points: they may import those, and nothing imports them.
ENTRIES = ("bringup/__main__.py", "bringup/testing.py")

# Files that are no Python, none of which a result depends on.
DATA = {
    "*.md": "pages of `bringup explain`",
    "*.css": "the report's style",
    "*.js": "the report's script",
    "fidelity.json": "measurements that `bringup models` lists",
    "py.typed": "a mark for type checkers",
}

# Which keys each file of a family has. A module's is its MLIR, so that only the engine can change it otherwise.
OWN = {
    "graphs/gpt2.py": {"prologue", "layer", "epilogue", "weights", "bundle"},
    "adapters/gpt2.py": {"weights", "bundle"},
}
ALL = {"prologue", "layer", "epilogue", "weights", "module", "bundle"}

# Edits of one body each: only what runs it is traced anew, and weights are never written anew.
BODIES = {
    "the graph's final": ("self.transformer.ln_f(x_Nm)", "2 * self.transformer.ln_f(x_Nm)", {"epilogue", "bundle"}),
    "the graph's prologue": ("self.transformer.wte(step", "2 * self.transformer.wte(step", {"prologue", "bundle"}),
    "a layer's forward": ("return x_Nm + self.mlp", "return x_Nm - self.mlp", {"layer", "bundle"}),
}

# Imports the package from the folder of copies, changes one copy after the other, and prints the keys of each change.
SCRIPT = """
import json, sys
from pathlib import Path
from bringup.compile.cache import text_digests as texts
from bringup.compile.targets.selection import select
from bringup.compile.bundle.bundle_key import CacheKeys
from bringup.compile.program.stage_key import stage_inputs
from bringup.compile.job import open_job
from bringup.compile.program.export_options import layout_of
from bringup.compile.program.assemble import Stage
import bringup

root = Path(sys.argv[1])
assert Path(bringup.__file__).is_relative_to(root)
texts.STARTED = float("inf")  # what runs is known: only copies change
job = open_job("gpt2", "dummy", config=json.loads(sys.argv[2]))
layout = layout_of(job.graph, 32)
stages = [Stage(name="s", part=part, path=path, point=layout.entries[-1]) for part, path in
          [("prologue", ""), ("layer", layout.layers[0]), ("all_rows", "")]]

def keys():
    keys = CacheKeys.of(job, layout, select("iree-cpu"))
    digests = [stage_inputs(job.graph, layout, stage, "mlir") for stage in stages]
    return dict(zip(["prologue", "layer", "epilogue"], digests), weights=keys.weights, bundle=keys.bundle,
                module=select("iree-cpu").inputs())

before = keys()
assert all(before.values())
assert keys() == before
changed = {}
for name, (file, old, new) in json.loads(sys.stdin.read()).items():
    path = root / file
    text = path.read_bytes()
    assert old.encode() in text, name
    path.write_bytes(text.replace(old.encode(), new.encode(), 1) if old else text + new.encode())
    after = keys()
    path.write_bytes(text)
    changed[name] = [what for what in before if before[what] != after[what]]
print(json.dumps(changed))
"""

CONFIG = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 1}
CONFIG |= {"n_head": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_ctx": 32}


def sources() -> dict[str, Path]:
    return {name: path for name, path in files().items() if path.suffix == ".py"}


def family_files() -> set[str]:
    from bringup.graphs.registry import FAMILIES

    places = {str(place) for each in FAMILIES for place in (each.graph, each.adapter, each.dialect) if place}
    return {place.partition(":")[0].removeprefix("bringup.").replace(".", "/") + ".py" for place in places}


def place_of(name: str) -> str:
    """Where a file is once it is installed."""
    return name if name.startswith("bringup/") else f"bringup/{name}"


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> dict[str, set[str]]:
    """The keys that a change of each file changes."""
    folder = installed(tmp_path_factory.mktemp("installed"))
    names = {place_of(name): name for name in sources()}
    bodies = {name: ("bringup/graphs/gpt2.py", old, new) for name, (old, new, _) in BODIES.items()}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), json.dumps(CONFIG)],
        env=os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=folder,
        input=json.dumps({name: (name, "", "\nCHANGED = 1\n") for name in names} | bodies),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {names.get(name, name): set(keys) for name, keys in json.loads(done.stdout).items()}


@pytest.mark.slow
def test_every_file_of_the_engine_is_in_every_key(changed):
    engine = {name for name in sources() if not name.startswith(APART)} - family_files()
    assert len(engine) > 150
    assert {name: keys for name, keys in changed.items() if name in engine and keys != ALL} == {}


@pytest.mark.slow
def test_a_familys_files_are_in_the_keys_of_that_family_alone(changed):
    families = family_files()
    assert families <= set(sources())
    assert {name: changed[name] for name in families} == {name: OWN.get(name, set()) for name in families}


@pytest.mark.slow
def test_a_traced_body_is_in_the_key_of_its_own_stage_alone(changed):
    assert {name: changed[name] for name in BODIES} == {name: keys for name, (_, _, keys) in BODIES.items()}


@pytest.mark.slow
def test_what_shows_results_is_in_no_key(changed):
    apart = {name for name in sources() if name.startswith(APART)}
    assert apart
    assert {name: keys for name, keys in changed.items() if name in apart and keys} == {}


def test_no_file_that_makes_a_result_imports_one_that_is_in_no_key():
    """Which is why those may be left out: of `cli` and `render`, and of families other than the model's."""
    families = family_files()
    barred = {f"bringup.{name.removesuffix('.py').replace('/', '.')}" for name in families}
    for name, path in sources().items():
        if name.startswith(APART) or name in families:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, name
                named = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            for module in named:
                assert module not in barred, f"{name} imports {module}"
                place = module.replace(".", "/")
                assert not f"{place}/".startswith(APART) or name in ENTRIES, name
                assert f"{place}.py" not in ENTRIES, name


def test_every_data_file_is_known_to_decide_nothing():
    other = [path for path in files().values() if path.suffix != ".py"]
    assert other
    assert [path for path in other if not any(path.match(pattern) for pattern in DATA)] == []


@pytest.mark.slow
def test_doubled_values_are_not_taken_from_the_cache(tmp_path, nursery):
    """A compile by a package whose engine was edited writes weights anew, and they are those of the edited engine."""
    package = installed(tmp_path / "installed")
    mini = Mini.write(tmp_path, nursery)

    def weights(name: str) -> bytes:
        output = mini.compile_alone("--target", "torch", "-o", name, package=package)
        assert "shared" not in output
        return (tmp_path / name / "weights.safetensors").read_bytes()

    first = weights("a.bundle")
    engine = package / "bringup" / "adapters" / "apply" / "materialise.py"
    text = engine.read_text()
    assert text.count("def fill(") == 1
    doubled = "\n\ndef fill(entry, read):\n    return _plain(entry, read) * 2\n"
    engine.write_text(text.replace("def fill(", "def _plain(") + doubled)
    assert weights("b.bundle") != first
