"""Workflow commands, read back as the runner reads them (actions/runner, ActionCommand.cs), and the step summary."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from bringup.diagnostics import Diagnostic, Report, Severity
from bringup.render.annotations import workflow_commands
from bringup.render.formats import actions
from bringup.render.formats.by_name import render
from bringup.render.formats.markdown import within
from bringup.render.progress import StageLines
from bringup.spec import Site
from tests.render.reports import REPORTS, SOURCES, crowd, many, shape


class Command(NamedTuple):
    kind: str
    properties: dict[str, str]
    message: str


def commands(text: str) -> list[Command]:
    return [command(line) for line in text.splitlines()]


def command(line: str) -> Command:
    head, _, data = line.removeprefix("::").partition("::")
    kind, _, rest = head.partition(" ")
    pairs = (pair.split("=", 1) for pair in rest.split(",") if pair)
    return Command(kind, {name: _unescaped(value) for name, value in pairs}, _unescaped(data))


def _unescaped(text: str) -> str:
    return re.sub("%(0D|0A|3A|2C|25)", lambda found: chr(int(found[1], 16)), text)


@pytest.mark.parametrize("report", REPORTS)
def test_annotations_stand_on_real_lines(workspace: Path, report: str) -> None:
    findings = REPORTS[report]().findings
    annotations = commands(render("github", REPORTS[report]()))
    assert len(annotations) == len(findings) or report == "crowd"
    for kind, properties, message in annotations:
        assert kind in {"error", "warning", "notice"}
        assert message
        assert properties["title"].startswith(("BU", "bringup"))
        if "line" in properties:
            lines = (workspace / properties["file"]).read_text("utf-8").splitlines()
            first, last = int(properties["line"]), int(properties["endLine"])
            assert re.search(r"S\(|cat\(|drop\(", "\n".join(lines[first - 1 : last]))
            if "col" in properties:
                assert first == last
                marked = lines[first - 1][int(properties["col"]) - 1 : int(properties["endColumn"])]
                assert marked.endswith(")")
                assert marked.startswith(("S(", "tiny.drop("))


def test_one_finding_has_it_all(workspace: Path) -> None:
    (annotations,) = commands(workflow_commands([shape()]))
    assert annotations.kind == "error"
    assert annotations.properties == {
        "title": "BU102 shape-mismatch",
        "file": "adapters/tiny.py",
        "line": "3",
        "endLine": "3",
        "col": "37",
        "endColumn": "72",
    }
    assert annotations.message.splitlines()[0] == shape().message
    assert annotations.message.splitlines()[-1] == f"help: {shape().help}"


def test_paths_count_from_the_repository(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command runs; and through links, the file itself."""
    finding = shape()
    (workspace / "linked").symlink_to(workspace / "adapters")
    linked = Diagnostic(code="BU102", message="m", where=Site(str(workspace / "linked/tiny.py"), 3))
    monkeypatch.chdir(workspace / "graphs")
    assert {c.properties["file"] for c in commands(workflow_commands([finding, linked]))} == {"adapters/tiny.py"}
    monkeypatch.delenv("GITHUB_WORKSPACE")
    (annotations,) = commands(workflow_commands([finding]))
    assert annotations.properties["file"] == "adapters/tiny.py"


def test_a_file_outside_is_not_named(workspace: Path, tmp_path: Path) -> None:
    """The annotation falls to the parameter when that is inside, else to no file; the message says where it is."""
    outside = tmp_path / "outside.py"
    outside.write_text(SOURCES["adapters/tiny.py"], "utf-8")
    installed = workspace / ".venv/lib/site-packages/tiny.py"
    installed.parent.mkdir(parents=True)
    (workspace / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n", "utf-8")
    installed.write_text(SOURCES["adapters/tiny.py"], "utf-8")
    for path in (outside, installed):
        alone = Diagnostic(code="BU102", message="m", where=Site(str(path), 3))
        (annotations,) = commands(workflow_commands([alone]))
        assert set(annotations.properties) == {"title"}
        assert f"{path.name}:3" in annotations.message
        adjacent = Diagnostic(code="BU102", message="m", where=Site(str(path), 3), declared=shape().declared)
        (annotations,) = commands(workflow_commands([adjacent]))
        assert (annotations.properties["file"], annotations.properties["line"]) == ("graphs/tiny.py", "3")


def test_a_folder_of_the_repository_may_have_any_name(workspace: Path) -> None:
    own = workspace / "vendor/site-packages/tiny.py"
    own.parent.mkdir(parents=True)
    own.write_text(SOURCES["adapters/tiny.py"], "utf-8")
    (annotations,) = commands(workflow_commands([Diagnostic(code="BU102", message="m", where=Site(str(own), 3))]))
    assert (annotations.properties["file"], annotations.properties["line"]) == ("vendor/site-packages/tiny.py", "3")


def test_a_checkpoint_in_the_repository_is_named(workspace: Path) -> None:
    (workspace / "a,b:c%.safetensors").write_bytes(b"")
    finding = Diagnostic(code="BU105", message="m", file=str(workspace / "a,b:c%.safetensors"))
    line = workflow_commands([finding])
    assert "file=a%2Cb%3Ac%25.safetensors::" in line
    assert command(line.strip()).properties["file"] == "a,b:c%.safetensors"


def test_no_more_than_a_step_shows(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "x")
    annotations = commands(render("github", crowd()))
    errors = [c for c in annotations if c.kind == "error"]
    assert (len(errors), len(annotations)) == (10, 20)
    assert annotations[:10] == errors
    assert errors[-1].message == "51 more errors in the summary of this step"
    assert annotations[-1].message == "3 more warnings in the summary of this step"
    ten = [Diagnostic(code="BU105", message=str(k)) for k in range(10)]
    assert [c.message for c in commands(workflow_commands(ten))] == [str(k) for k in range(10)]


def test_a_warning_under_way_is_an_annotation_too(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    finding = Diagnostic(code="BU114", severity=Severity.WARNING, message="differs")
    StageLines(log).warn(finding)
    assert "::warning" not in log.getvalue()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    StageLines(log).warn(finding)
    assert command(log.getvalue().splitlines()[-1]).kind == "warning"


def test_the_summary_is_appended(workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    file = workspace / "summary.md"
    file.write_text("# before\n", "utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    actions.tell_github(many())
    actions.tell_github(REPORTS["clean"](), annotate=False)
    expected = "# before\n" + render("markdown", many()) + render("markdown", REPORTS["clean"]())
    assert file.read_text("utf-8") == expected
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", render("github", many()))


def test_the_summary_keeps_its_limit(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before counts; what does not fit is counted, and nothing is torn."""
    file = workspace / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    huge = Report("層", [Diagnostic(code="BU105", message=f"`x{k}` {'é' * 900}") for k in range(800)], {})
    for _ in range(3):
        actions.tell_github(huge, annotate=False)
        assert file.stat().st_size <= actions.SUMMARY_LIMIT
    text = file.read_text("utf-8")
    assert file.stat().st_size > 0.9 * actions.SUMMARY_LIMIT
    assert "parts of this report did not fit" in text
    assert all(line.endswith(" |") for line in text.splitlines() if line.startswith("| error"))
    assert text.count("<details>") == text.count("</details>")


@pytest.mark.parametrize("nbytes", [0, 79, 80, 250, 1000, 5000])
def test_any_width_is_respected(workspace: Path, nbytes: int) -> None:
    assert len(within(many(), nbytes).encode()) <= nbytes
