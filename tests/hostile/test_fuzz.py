"""Every fuzz script runs, and finds nothing in its first inputs; the committed figures are of 200,000."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    file for file in sorted((ROOT / "benchmarks/fuzz").glob("*.py")) if "sys.exit(main(" in file.read_text("utf-8")
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_short_run(tmp_path: Path, script: Path) -> None:
    command = [sys.executable, script, "--inputs", "200", "--seed", "7", "--out", tmp_path / "page.md"]
    done = subprocess.run([*command, "--keep", tmp_path / "kept"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| anything else | 0 |" in (tmp_path / "page.md").read_text("utf-8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_committed_figures(script: Path) -> None:
    page = (ROOT / f"benchmarks/results/fuzz-{script.stem.replace('_', '-')}.md").read_text("utf-8")
    (inputs,) = re.findall(r"\| inputs \| ([\d,]+) ", page)
    assert int(inputs.replace(",", "")) >= 200_000
    assert "| anything else | 0 |" in page
    assert "not explained" not in page


def test_a_fault_is_found(tmp_path: Path) -> None:
    """A parser that lets a plain exception out, is slow, or hoards memory: each is seen, and its input kept."""
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY, "utf-8")
    command = [sys.executable, script, "--inputs", "100", "--out", tmp_path / "page.md", "--keep", tmp_path / "kept"]
    path = {"PYTHONPATH": str(ROOT / "benchmarks/fuzz")}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    page = (tmp_path / "page.md").read_text("utf-8")
    for said in ("ZeroDivisionError at faulty.py:8", "took over 1 s", "took over 200 MB", "only bringup accepts: no"):
        assert f"| {said} |" in page
    assert any(file.read_bytes() == b"zero" for file in (tmp_path / "kept").iterdir())


FAULTY = """
import sys, time
from driver import ACCEPTED, Target, main
from bringup.diagnostics import fail

def parse(data):
    if data == b"zero":
        return 1 / 0
    SEEN.append(data)
    if data == b"slow" and SEEN.count(data) <= 2:
        end = time.process_time() + 1.1
        while time.process_time() < end:
            pass
    if data == b"large" and SEEN.count(data) == 1:
        return len(b"x" * 300_000_000)
    if data == b"bad":
        raise fail("BU201", "no")

SEEN = []
WORDS = [b"zero", b"slow", b"large", b"bad", b"good"]
TARGET = Target(name="faulty", about="", seeds=[b"good"], parse=parse, share=1.0,
                mutate=lambda random, seeds: random.choice(WORDS),
                oracle=lambda data: "no" if data == b"good" else ACCEPTED if data == b"zero" else "no")
sys.exit(main(TARGET))
"""
