"""The first section of docs/adding-a-model.md: its commands are run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from tests import PATIENCE
from tests.ci.conftest import ROOT
from tests.codes import pages
from tests.codes.commands import run
from tests.draft.checkpoints import SIZES, save
from tests.models import parity

PAGE = ROOT / "docs" / "adding-a-model.md"


@pytest.mark.slow
def test_from_init_to_verify(tmp_path: Path) -> None:
    """No line of the draft is changed."""
    page = pages.read(PAGE)
    save("granite", tmp_path / "my-granite")
    commands = [command for command in page.commands if "my-granite" in command.line]
    assert [command.line.split()[1] for command in commands] == ["init", "check", "verify"]
    for command in commands:
        code, printed = run(command.line, tmp_path)
        assert code == 0, printed
        assert pages.missing(command.output, printed) == [], printed
    # The graph multiplies the embedding where it is looked up, transformers multiplies it afterwards.
    assert "the logits agree although these outputs differ: model.embed_tokens\n" in printed
    assert "graph applies a factor in another module than transformers, such as that of the embedding" in printed


# The command line in a process whose registry lacks a family of ours.
WITHOUT = """import sys
import bringup.graphs.registry as registry
registry.FAMILIES = tuple(family for family in registry.FAMILIES if family.name != {name!r})
from bringup.cli.main import main
sys.exit(main())
"""


@pytest.mark.slow
def test_a_family_of_ours_drafted_anew(tmp_path: Path) -> None:
    """OLMo 2, kept out of the registry, by the page's commands: no line is written by hand."""
    parity.save_checkpoint(CONFIG_MAPPING["olmo2"](**SIZES), tmp_path / "my-olmo2")
    without = tmp_path / "without.py"
    without.write_text(WITHOUT.format(name="olmo2"))
    lines = [command.line.replace("granite", "olmo2") for command in pages.read(PAGE).commands]
    for line in [line for line in lines if "my-olmo2" in line]:
        done = subprocess.run(
            [sys.executable, str(without), *line.split()[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "agrees on torch with transformers" in done.stdout
