"""A folder that a command reads is never replaced by its result, `--force` or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bringup.cli.main import cli
from tests.lora.written import Case, write

LLAMA = Case("llama", {"r": 4, "target_modules": ["q_proj"]})


@pytest.mark.parametrize("command", ["convert", "export", "export --quantize int8", "lora merge LORA", "compile"])
def test_the_checkpoint_is_not_replaced(command: str, tmp_path: Path) -> None:
    written, own = write(LLAMA, tmp_path), tmp_path / "own"
    words = [str(written.lora) if word == "LORA" else word for word in command.split()]
    first = [words[0] if words[0] in ("convert", "compile") else "export", "--checkpoint", str(written.base)]
    assert CliRunner().invoke(cli, [*first, "-o", str(own)]).exit_code == 0
    source = own
    if words[0] == "compile":  # a checkpoint in the folder of a bundle
        source = own / "checkpoint"
        written.base.rename(source)
    before = {path: path.stat().st_ino for path in own.rglob("*")}
    refused = CliRunner().invoke(cli, [*words, "--checkpoint", str(source), "-o", str(own), "--force"])
    assert refused.exit_code == 2, refused.output
    assert "error[BU012]" in refused.stderr
    assert "which this command reads" in refused.stderr
    assert {path: path.stat().st_ino for path in own.rglob("*")} == before
