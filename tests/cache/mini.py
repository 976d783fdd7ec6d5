"""A model in two files of its own. The test chooses their folder, edits them, and compiles the model in processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.resources.compiles import Nursery

COMMAND = ("compile", "./mini.py", "--checkpoint", "dummy", "--config", "config.json")

HELPERS = """\
SCALE = 1.5


def twice(x):
    return x * 2
"""

MODEL = '''\
"""A small model."""

from dataclasses import dataclass
from typing import Any

import helpers
from bringup.adapters.planning.expected_headers import as_declared
from bringup.graphs.config.hf_config import HFConfig
from bringup.graphs.config.fields import Fields
from bringup.graphs.core.graph import Graph
from bringup.graphs.layers.embedding import Embedding
from bringup.graphs.layers.linear import Linear
from bringup.graphs.layers.norm import LayerNorm
from bringup.graphs.core.module import Module
from bringup.graphs.family import Family

OFFSET = 0.25


@dataclass(frozen=True)
class MiniConfig(HFConfig):
    family = "mini"
    hidden: int
    num_layers: int
    vocab_size: int
    max_positions: int
    factor: float

    @classmethod
    def from_fields(cls, fields: Fields) -> "MiniConfig":
        return cls(
            hidden=fields.size("hidden"),
            num_layers=fields.size("num_layers"),
            vocab_size=fields.size("vocab_size"),
            max_positions=fields.size("max_positions"),
            factor=fields.get("factor", float, 1.0),
        )


class Block(Module):
    def __init__(self, config: MiniConfig) -> None:
        super().__init__()
        self.factor = config.factor
        self.fc = Linear("out:f in:m", f=config.hidden, m=config.hidden)

    def forward(self, x, step):
        y = self.fc(x) * helpers.SCALE  # forward
        return x + helpers.twice(y) * self.factor


class Mini(Graph):
    layer_path = "blocks"

    def __init__(self, config: MiniConfig, dtype: str = "float32") -> None:
        super().__init__(config, dtype)
        self.embed = Embedding("vocab m", vocab=config.vocab_size, m=config.hidden)
        self.blocks = [Block(config) for _ in range(config.num_layers)]
        self.norm = LayerNorm(config.hidden, 1e-5)
        self.head = Linear("out:vocab in:m", vocab=config.vocab_size, m=config.hidden, bias=False)

    def prologue(self, step):
        return (self.embed(step.tokens) + OFFSET,)  # prologue

    def epilogue(self, x):
        return self.head(self.norm(x))  # epilogue


def adapter(config: MiniConfig):
    return as_declared(Mini(config).signature())


family = Family(name="mini", graph=Mini, config=MiniConfig, adapter=adapter, architectures=("Mini",))
'''

CONFIG = {
    "architectures": ["Mini"],
    "hidden": 16,
    "num_layers": 2,
    "vocab_size": 32,
    "max_positions": 32,
    "factor": 1.0,
}


@dataclass(frozen=True)
class Mini:
    """The files, and the command line run on them, each time in a process of its own."""

    folder: Path
    nursery: Nursery

    @classmethod
    def write(cls, folder: Path, nursery: Nursery) -> Mini:
        (folder / "helpers.py").write_text(HELPERS)
        (folder / "mini.py").write_text(MODEL)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        return cls(folder, nursery)

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def compile(self, *words: str, cache: str = "cache") -> str:
        """What `bringup compile ./mini.py` prints, with weights that depend on nothing but their names.

        The process is a child of one that has imported torch, and no file of the folder.
        """
        environment = {"BRINGUP_COMPILE_CACHE": str(self.folder / cache)}
        ended = self.nursery.run(*COMMAND, *words, folder=str(self.folder), environment=environment)
        assert ended.code == 0, ended.said
        return ended.said

    def compile_alone(self, *words: str, cache: str = "cache", package: Path | None = None) -> str:
        """The same by a process that has imported nothing. `package` is the folder of another installation."""
        path = ":".join(map(str, [package, self.folder] if package else [self.folder]))
        places = {"BRINGUP_COMPILE_CACHE": str(self.folder / cache), "PYTHONPATH": path}
        command = [sys.executable, "-m", "bringup", *COMMAND, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=os.environ | places, capture_output=True, text=True, check=True
        )
        return done.stderr

    def mlir(self, name: str, cache: str = "cache") -> str:
        """The whole program's text."""
        self.compile("--target", "iree-cpu", "--emit", "mlir", "-o", name, cache=cache)
        return (self.folder / name).read_text()
