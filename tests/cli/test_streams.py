"""Standard streams that are closed, and folders whose names are no UTF-8: nothing of bringup's is to blame."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Bringup
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint

LINES = ["models", "--help", "--version", "check --help", "completion bash", "explain BU102"]
LINES += ["check gpt2 --checkpoint dummy", "cache ls", "inspect {small}"]
ODD = ["Traceback", "Exception ignored", "this is a bug"]


@pytest.mark.parametrize("line", LINES)
def test_a_reader_that_went_away(line: str, tmp_path: Path) -> None:
    """`cache ls` of an empty cache prints nothing to it."""
    reader, writer = os.pipe()
    os.close(reader)
    if "{small}" in line:
        line = line.format(small=write_checkpoint(tmp_path / "small", gpt2_shapes(**SMALL), gpt2_config(**SMALL)))
    command = [sys.executable, "-m", "bringup", *line.split()]
    env = os.environ | {"BRINGUP_COMPILE_CACHE": str(tmp_path)}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=env)
    os.close(writer)
    assert not any(word in done.stderr for word in ODD), done.stderr
    assert done.returncode == (0 if line == "cache ls" else 141)


@pytest.mark.parametrize(
    ("line", "code"), [("--version", 0), ("check gpt2 --checkpoint dummy", 0), ("check gpt2 --checkpoint nothing", 2)]
)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(line: str, code: int, closed: str) -> None:
    script = f'exec "$0" -m bringup {line} {closed}'
    done = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, text=True, check=False)
    assert not any(word in done.stdout + done.stderr for word in ODD), done.stderr
    assert done.returncode == code


def test_folders_that_are_not_utf_8(tmp_path: Path, bringup: Bringup) -> None:
    """A process gets such a name as bytes; what imports torch runs in this one, with the name as Python decodes it."""
    plain = write_checkpoint(tmp_path / "plain", gpt2_shapes(**SMALL), gpt2_config(**SMALL))
    odd = tmp_path / os.fsdecode(b"b\xff")
    plain.rename(odd)
    bundle = tmp_path / os.fsdecode(b"c\xfe.bundle")
    command = [sys.executable, "-m", "bringup", "check", "--checkpoint", os.fsencode(odd)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (
        ["compile", "--checkpoint", odd, "--target", "torch", "-o", bundle],
        ["run", bundle, "--tokens", "1,2", "--max-new-tokens", "2"],
    )
    for words in lines:
        ended = bringup(*words)
        assert ended.exit_code == 0, ended.output
