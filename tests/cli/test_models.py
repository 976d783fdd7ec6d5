"""`bringup models`: every family with what it is and how near it is; README shows the same table."""

from __future__ import annotations

import ast
from pathlib import Path

from click.testing import CliRunner

from bringup.cli.models import FAMILY, command
from bringup.graphs.registry import FAMILIES

ROOT = Path(__file__).resolve().parent.parent.parent


def output_of(*words: str) -> str:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_readme_shows_it() -> None:
    assert output_of("--markdown") in (ROOT / "README.md").read_text("utf-8")


def test_every_family_is_described_and_measured() -> None:
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in output_of("--markdown").splitlines()[2:]
    ]
    assert [row[0] for row in rows] == [family.name for family in FAMILIES]
    for name, models, features, targets, float32, bfloat16 in rows:
        title = ast.get_docstring(ast.parse((ROOT / f"graphs/{name}.py").read_text("utf-8"))) or ""
        assert title.startswith(f"{models}: {features}")
        assert targets.startswith("torch")
        assert 0 < float(float32) < 2e-4
        assert 0.5 < float(bfloat16.removesuffix(" x")) < 1.3
    assert len(FAMILY) == 6


def test_a_terminal_gets_columns() -> None:
    lines = output_of().splitlines()
    assert "gpt2-xl      hf://openai-community/gpt2-xl" in lines
    assert any(line.startswith("mixtral ") and "MixtralForCausalLM" in line for line in lines)
