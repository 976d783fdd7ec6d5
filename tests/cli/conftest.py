from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bringup.cli.main import cli
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint

Bringup = Callable[..., Result]
SMALL = {"layers": 3, "hidden": 128, "vocab": 96, "positions": 16}


@pytest.fixture
def bringup() -> Bringup:
    """Runs the command line in this process."""

    def run(*words: str | Path) -> Result:
        return CliRunner().invoke(cli, [str(word) for word in words])

    return run


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small checkpoint in GPT-2's published layout; its values are all zero."""
    return write_checkpoint(tmp_path / "small", gpt2_shapes(**SMALL), gpt2_config(**SMALL))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """The small checkpoint with three mistakes: a renamed tensor, one too many, and a transposed kind."""
    shapes = gpt2_shapes(**SMALL)
    shapes["h.1.mlp.c_prj.weight"] = shapes.pop("h.1.mlp.c_proj.weight")
    shapes["extra"] = (3, 4)
    for layer in range(SMALL["layers"]):
        name = f"h.{layer}.attn.c_attn.weight"
        shapes[name] = shapes[name][::-1]
    return write_checkpoint(tmp_path / "broken", shapes, gpt2_config(**SMALL))
