"""`--format sarif`: a report for code scanning. SARIF 2.1.0, errata 01 (docs.oasis-open.org/sarif/sarif/v2.1.0)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bringup import __version__
from bringup.codes import page
from bringup.diagnostics import Diagnostic, Fix, Report
from bringup.render.json_text import json_text
from bringup.render.places import in_repository, repository
from bringup.render.severity import ordered
from bringup.render.spans import span_of
from bringup.render.terminal import Paint
from bringup.spec import Site

Json = dict[str, Any]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
_PAGE = re.compile(r"# (?P<code>\S+) (?P<name>\S+)\n+(?P<what>.+?)\n\n\*\*Why it matters\.\*\* (?P<why>.+?)\n\n", re.S)


def render(report: Report, paint: Paint) -> str:
    """One run. Its id begins with the model, so that the checks of several models can be shown together."""
    listed = ordered(report.findings)
    codes = list(dict.fromkeys(finding.code for finding in listed))
    run: Json = {
        "tool": {"driver": {"name": "bringup", "version": __version__, "rules": [_rule(code) for code in codes]}},
        "automationDetails": {"id": f"bringup/{report.model}/" if report.model else "bringup/"},
        "invocations": [{"executionSuccessful": report.exit_code < 2, "exitCode": report.exit_code}],
        "originalUriBaseIds": {ROOT: {"uri": f"{repository().as_uri()}/"}},
        "columnKind": "unicodeCodePoints",
        "results": [
            _result(finding, codes.index(finding.code), fingerprint)
            for finding, fingerprint in zip(listed, _fingerprints(report.model, listed), strict=True)
        ],
    }
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(code: str) -> Json:
    """A code, with its page as help."""
    text = page(code) or ""
    parts = _PAGE.match(text)
    if parts is None:
        return {"id": code}
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in parts["name"].split("-")),
        "shortDescription": {"text": _one_line(parts["what"])},
        "fullDescription": {"text": _one_line(parts["why"])},
        "help": {"text": text, "markdown": text},
    }


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _result(finding: Diagnostic, rule: int, fingerprint: str) -> Json:
    """The position of a result is its rule, else the parameter, else the checkpoint's file; the others are related.

    Viewers show only files of the repository, so these precede others, such as the rules of an installed adapter.
    """
    file = Site(finding.file, finding.line) if finding.line else finding.file
    label = "the tensor" if finding.tensor or finding.where else "the file"
    labels = {finding.where_label: finding.where, "the parameter": finding.declared, label: file}
    given = sorted(((text, place) for text, place in labels.items() if place), key=lambda pair: not _viewed(pair[1]))
    places = [_physical(place) | {"message": {"text": text}} for text, place in given]
    first = {key: value for key, value in places[0].items() if key != "message"} if places else {}
    if finding.parameter:
        first["logicalLocations"] = [{"fullyQualifiedName": finding.parameter, "kind": "parameter"}]
    result: Json = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": str(finding.severity),
        "message": {"text": _message(finding)},
        "partialFingerprints": {"finding/v1": fingerprint},
    }
    if first:
        result["locations"] = [first]
    if finding.fixes:
        result["fixes"] = [{"description": {"text": finding.help}, "artifactChanges": _changes(finding.fixes)}]
    if places[1:]:
        result["relatedLocations"] = [{"id": number, **place} for number, place in enumerate(places[1:], 1)]
    return result


def _changes(fixes: Iterable[Fix]) -> list[Json]:
    """The edits that `check --fix` would apply, by file."""
    replacements: dict[str, list[Json]] = {}
    for fix in fixes:
        start = {"startLine": fix.line, "startColumn": fix.column + 1}
        end = {"endLine": fix.line, "endColumn": fix.column + len(fix.old) + 1}
        edit = {"deletedRegion": start | end, "insertedContent": {"text": fix.new}}
        replacements.setdefault(fix.file, []).append(edit)
    return [{"artifactLocation": _artifact(file), "replacements": edits} for file, edits in replacements.items()]


def _message(finding: Diagnostic) -> str:
    """Text without placeholders and links of viewers (3.11.5, 3.11.6). Other braces are not placeholders, and viewers
    show braces that are doubled as the specification requires unchanged."""
    text = f"{finding.message}; {finding.help}" if finding.help else finding.message
    return re.sub(r"\{(\d+)\}", r"{{\1}}", text).replace("](", "\\](")


def _viewed(place: Site | str) -> bool:
    return in_repository(place if isinstance(place, str) else place.file) is not None


def _physical(place: Site | str) -> Json:
    """Lines of source, or a complete file. Columns count from 1, the end excluded."""
    if isinstance(place, str):
        return {"physicalLocation": {"artifactLocation": _artifact(place)}}
    span = span_of(place)
    region: Json = {"startLine": place.line}
    if span:
        region = {
            "startLine": span.line,
            "startColumn": span.column + 1,
            "endLine": span.end_line,
            "endColumn": span.end_column + 1,
            "snippet": {"text": "\n".join(span.lines)},
        }
    return {"physicalLocation": {"artifactLocation": _artifact(place.file), "region": region}}


def _artifact(file: str) -> Json:
    """The path in the repository; outside of it, the absolute path."""
    inside = in_repository(file)
    if inside is None:
        return {"uri": Path(os.path.realpath(file)).as_uri()}
    return {"uri": (Path("/") / inside).as_uri().removeprefix("file:///"), "uriBaseId": ROOT}


def _fingerprints(model: str, findings: Iterable[Diagnostic]) -> list[str]:
    """Stable if lines move: the code and the names. If these of two findings are equal, the later one is numbered."""
    seen: dict[str, int] = {}
    fingerprints: list[str] = []
    for finding in findings:
        facts = [model, finding.code, finding.parameter, *finding.sources]
        digest = hashlib.sha256("\0".join(facts).encode(errors="replace")).hexdigest()[:32]
        seen[digest] = seen.get(digest, 0) + 1
        fingerprints.append(digest if seen[digest] == 1 else f"{digest}:{seen[digest]}")
    return fingerprints
