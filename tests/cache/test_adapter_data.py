"""Data that an adapter's files load from other files when they are imported: part of the cache keys of weights."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bringup.compile.cache.text_digests import _TICK

PROGRAM = """
import sys
import bringup
from bringup.compile.bundle.bundle_key import weights_inputs
from bringup.compile.cache.store import key_of

job = bringup.open_job("gpt2", "dummy", config=dict(n_embd=16, n_head=2, n_layer=1, vocab_size=16, n_positions=16),
                       adapter=sys.argv[1])
inputs = weights_inputs(job, 16)
assert inputs is not None
print(key_of(inputs), float(bringup.adapt(job)["transformer.ln_f.weight"][0]))
"""
ADAPTER = """
from pathlib import Path

import numpy as np

from bringup.adapters import S, fn
from bringup.adapters.gpt2 import adapter as published
{top}

def adapter(config):
    weight = fn({function}, S("ln_f.weight", "m", m=16), axes="m", m=16, dtype="float32")
    return published(config).with_(rules={{"transformer.ln_f.weight": weight}})
"""
LOADED = 'TABLE = np.load(Path(__file__).with_name("table.npy"))\n'
FUNCTIONS = "def times(x): return x * 0 + TABLE\n@cache\ndef table(): return TABLE\n"
HELPER = f"from functools import cache\nfrom pathlib import Path\nimport numpy as np\n{LOADED}{FUNCTIONS}"
OFTEN = ("an array", "an object", "the name of a builtin", "a cached function")
# By name: the part of the adapter's file before its function, and the function of its rule.
CASES = {
    "an array": (f"{LOADED}def times(x): return x * 0 + TABLE", "times"),
    "an array in a lambda": (f"{LOADED}times = lambda x: x * 0 + TABLE", "times"),
    "a number of numpy": (f"{LOADED}FACTOR = TABLE[0]\ndef times(x): return x * 0 + FACTOR", "times"),
    "a set": (f"{LOADED}FACTORS = set(TABLE.tolist())\ndef times(x): return x * 0 + np.float32(max(FACTORS))", "times"),
    "an object": (
        f"class Settings: pass\nSETTINGS = Settings()\n{LOADED}SETTINGS.factor = float(TABLE[0])\n"
        "def times(x): return x * 0 + np.float32(SETTINGS.factor)",
        "times",
    ),
    "the name of a builtin": (f"{LOADED}max = float(TABLE[0])\ndef times(x): return x * 0 + np.float32(max)", "times"),
    "a function of a helper": ("import helper\ndef scaled(x): return helper.times(x)", "scaled"),
    "a name of a helper": ("from helper import times\ndef scaled(x): return times(x)", "scaled"),
    "a cached function": ("from helper import table\ndef scaled(x): return x * 0 + table()", "scaled"),
}  # fmt: skip


def key(file: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_data_that_a_file_loads_is_in_the_key(tmp_path: Path, name: str) -> None:
    top, function = CASES[name]
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "mine.py").write_text(ADAPTER.format(top=top, function=function))
    time.sleep(2 * _TICK)  # a process that begins within a tick of a source file's time has no key
    found: list[list[str]] = []
    for value in (2, 2, 3):
        np.save(tmp_path / "table.npy", np.full(16, value, np.float32))
        found.append(key(tmp_path / "mine.py"))
    first, same, other = found
    assert [float(each[1]) for each in found] == [2, 2, 3]
    assert first[0] == same[0]
    assert first[0] != other[0]
