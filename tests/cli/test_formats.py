"""`bringup check --format`: to the terminal, to files, from the environment."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from bringup.cli.main import cli
from bringup.cli.parameters.outputs import Output, outputs_of
from bringup.diagnostics import BringupError
from bringup.render.formats.by_name import FORMATS
from tests import PATIENCE
from tests.cli.conftest import Bringup

PARSERS = {"json": json.loads, "sarif": json.loads, "junit": ElementTree.fromstring}


@pytest.mark.parametrize("format", FORMATS)
def test_the_terminal_and_a_file_hold_the_same(bringup: Bringup, broken: Path, tmp_path: Path, format: str) -> None:
    file = tmp_path / "report"
    shown = bringup("check", "--checkpoint", broken, "--format", format)
    both = bringup("check", "--checkpoint", broken, "--format", f"{format}={file}")
    assert (shown.exit_code, both.exit_code) == (1, 1)
    assert "BU102" in shown.stdout
    assert both.stdout.startswith("error[BU101]: ")
    PARSERS.get(format, str)(shown.stdout)
    assert _steady(file.read_text("utf-8")) == _steady(shown.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["broken", "report"] or len(list(tmp_path.iterdir())) == 2


def _steady(text: str) -> list[str]:
    return [line for line in text.splitlines() if "seconds" not in line and "timestamp" not in line]


def test_several_at_once(bringup: Bringup, broken: Path, tmp_path: Path) -> None:
    words = ["--format", "concise", *(w for f in ("sarif", "junit") for w in ("--format", f"{f}={tmp_path / f}"))]
    result = bringup("check", "--checkpoint", broken, *words, "-o", tmp_path / "text")
    assert result.exit_code == 1
    assert "\nerror[BU102]: " in result.stdout
    assert "error[BU102] " in (tmp_path / "text").read_text("utf-8")
    assert json.loads((tmp_path / "sarif").read_text("utf-8"))["version"] == "2.1.0"
    assert ElementTree.parse(tmp_path / "junit").getroot().tag == "testsuites"


def test_where_each_format_goes() -> None:
    def planned(*formats: Output, file: str | None = None) -> list[Output]:
        return outputs_of(formats, Path(file) if file else None)

    sarif = Output("sarif", Path("s"))
    assert planned() == [Output("full")]
    assert planned(Output("json")) == [Output("json")]
    assert planned(sarif) == [Output("full"), sarif]
    assert planned(Output("json"), sarif) == [Output("json"), sarif]
    assert planned(Output("json"), file="j") == [Output("full"), Output("json", Path("j"))]
    assert planned(file="t") == [Output("full"), Output("full", Path("t"))]
    for formats, file in [((Output("json"), Output("full")), None), ((sarif, sarif), None), ((sarif,), "s")]:
        with pytest.raises(BringupError, match="BU020"):
            planned(*formats, file=file)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "sarfi"], "did you mean `sarif`?"),
        (["--format", "sarif="], "names no file"),
        (["--format", "json", "--format", "full"], "error[BU020]"),
    ],
)
def test_a_wrong_format_is_exit_2(bringup: Bringup, small: Path, words: list[str], said: str) -> None:
    result = bringup("check", "--checkpoint", small, *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_the_environment_speaks_where_no_flag_does(
    bringup: Bringup, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_OUTPUT_FORMAT", f"json markdown={tmp_path / 'r.md'}")
    assert json.loads(bringup("check", "--checkpoint", small).stdout)["ok"]
    assert (tmp_path / "r.md").read_text("utf-8").startswith("### ✅ bringup: gpt2: 41 parameters")
    assert bringup("check", "--checkpoint", small, "--format", "concise").stdout.startswith("gpt2: 41 parameters")


def test_what_stops_a_check_is_in_every_format(bringup: Bringup, tmp_path: Path) -> None:
    for format in FORMATS:
        result = bringup("check", "--checkpoint", tmp_path / "none", "--format", format)
        assert result.exit_code == 2
        assert "BU034" in result.stdout
        PARSERS.get(format, str)(result.stdout)


@pytest.mark.parametrize("path", ["no/such/folder/r", "file/r", "folder"])
def test_a_path_that_is_none(bringup: Bringup, broken: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    result = bringup("check", "--checkpoint", broken, "--format", f"json={tmp_path / path}")
    assert result.exit_code == 2
    assert "error[BU021]: cannot write the report" in result.stderr
    assert result.stdout == "", "reported before the check"
    assert {p.name for p in tmp_path.rglob("*")} == {"broken", "config.json", "model.safetensors", "file", "folder"}


@contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond 100 bytes: the second write to a report fails as on a full disk."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_write_that_fails_leaves_the_old_report(bringup: Bringup, broken: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text("old")
    with small_files():
        result = bringup("check", "--checkpoint", broken, "--format", f"json={file}")
    assert result.exit_code == 3, result.stderr
    assert result.stderr.startswith("error[BU9")
    assert file.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir() if p.name != "broken"] == ["r.json"]


def test_links_and_pipes_stay(bringup: Bringup, small: Path, tmp_path: Path) -> None:
    """A link's target is replaced, not the link; what is no file is written to."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    bringup("check", "--checkpoint", small, "--format", f"json={tmp_path / 'link'}")
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real").read_text("utf-8"))["ok"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text("utf-8")), daemon=True)
    reader.start()
    bringup("check", "--checkpoint", small, "--format", f"json={pipe}")
    reader.join(PATIENCE)
    assert json.loads(read[0])["ok"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("format", FORMATS)
def test_colour_is_for_the_terminal(
    bringup: Bringup, broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = bringup("check", "--checkpoint", broken, "--format", format).stdout
    assert ("\x1b[1;31merror[BU101]\x1b[0m" in shown) == (format in ("full", "concise"))
    bringup("check", "--checkpoint", broken, "--format", f"{format}={tmp_path / 'report'}")
    assert "\x1b" not in (tmp_path / "report").read_text("utf-8")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in bringup("check", "--checkpoint", broken, "--format", format).stdout


@pytest.mark.parametrize("command", ["doctor", "targets", "inspect {}", "diff {} {}"])
def test_json_is_a_short_form(bringup: Bringup, small: Path, command: str) -> None:
    """Of `--format json`, in every command that prints tables."""
    words = command.format(small, small).split()
    short, full, text = bringup(*words, "--json"), bringup(*words, "--format", "json"), bringup(*words)
    assert json.loads(short.stdout).keys() == json.loads(full.stdout).keys()  # the free space in values may change
    assert short.exit_code == full.exit_code == text.exit_code
    assert not text.stdout.startswith("{")


def test_every_table_has_both_options() -> None:
    for name in ("bench", "diff", "doctor", "inspect", "targets", "verify"):
        command = cli.get_command(click.Context(cli), name)
        assert command
        assert {"--format", "--json"} <= {word for option in command.params for word in option.opts}, name
