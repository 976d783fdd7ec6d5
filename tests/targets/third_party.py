"""A target that another package provides: files and metadata in a folder outside of bringup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from bringup.cli.main import cli
from tests import PATIENCE

SOURCE = '''\
"""Runs what torch exports, with every logit multiplied."""

from contextlib import contextmanager

from bringup.compile import Option, Target, target_named

TORCH = target_named("torch")
FACTOR = 1.0


class Scaled:
    """An executor around torch's."""

    def __init__(self, inner, factor):
        self.inner, self.factor = inner, factor
        self.reset, self.states, self.set_states = inner.reset, inner.states, inner.set_states

    def step(self, entry, step):
        results = self.inner.step(entry, step)
        return results | {"logits": results["logits"] * self.factor}


class Scale(Target):
    name = "scale"
    summary = "torch with a factor"
    requires = ("torch",)
    options = {"factor": Option(default="1", kind="integer", help="what logits are multiplied by")}
    phases = ("factors",)

    def encode(self, function, exported):
        return TORCH.encode(function, exported)

    @contextmanager
    def lower(self, program, folder, options, store, dump_dir):
        inputs = {"functions": str(sorted(program.code))}
        cached = store.get(inputs)
        if cached is None:
            store.put(inputs, options["factor"].encode(), what="factor", seconds=0.1)
        with TORCH.lower(program, folder, options, store, dump_dir) as finish:
            if dump_dir:
                (dump_dir / "2-factor.txt").write_text(options["factor"])

            def write():
                (folder / "factor").write_bytes(cached or options["factor"].encode())
                return finish() + (", factor from the cache" if cached else "")

            yield write

    def load(self, folder, interface, weights, device):
        return Scaled(TORCH.load(folder, interface, weights, None), FACTOR * float((folder / "factor").read_text()))

    def emit(self, phase, program, options, dump_dir):
        return options["factor"].encode()

    def devices(self):
        return ["left", "right"]


scale = Scale()
'''


SETTLED = 0.1  # seconds: source files that are newer than a process are in no key of what it computes


def install(folder: Path, name: str = "scale-target", points: str = "scale = scale_target:scale") -> Path:
    """A folder for PYTHONPATH with the package and its metadata."""
    info = folder / f"{name.replace('-', '_')}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[bringup.targets]\n{points}\n")
    (folder / "scale_target.py").write_text(SOURCE)
    return folder


def bringup(folder: Path, site: Path | None, *words: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, in `folder`; `site` is where packages are installed besides."""
    env = os.environ | {"BRINGUP_COMPILE_CACHE": str(folder / "cache"), "PYTHONPATH": str(site or "")}
    command = [sys.executable, "-m", "bringup", *map(str, words)]
    time.sleep(SETTLED)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE)


def here(folder: Path, site: Path | None, *words: object) -> subprocess.CompletedProcess[str]:
    """The same in this process: for packages that nobody edits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_COMPILE_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        if site:
            patch.syspath_prepend(site)
        patch.delitem(sys.modules, "scale_target", raising=False)
        command = [str(word) for word in words]
        done = CliRunner().invoke(cli, command)
        sys.modules.pop("scale_target", None)
    return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)


def manifest(bundle: Path) -> dict:
    return json.loads((bundle / "manifest.json").read_text("utf-8"))
