"""`--format junit`: a report for test dashboards (Jenkins, GitLab).

A test case stands for all parameters of one pattern, and one for everything else: unread tensors, the config, ranks.
So a case has the same name in every run. The XML is valid for both Jenkins' junit-10.xsd and Ant's JUnit.xsd
(github.com/windyroad/JUnit-Schema).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

from bringup import __version__
from bringup.diagnostics import Diagnostic, Report, Severity
from bringup.grouping import digits, grouped
from bringup.render.report import findings_text, shares, summary
from bringup.render.terminal import Paint
from bringup.render.words import plural

REST = "every other tensor, config key and rank"
_PLAIN = Paint()
_RANGES = re.compile(r"\{[0-9.,]+\}")


def render(report: Report, paint: Paint) -> str:
    """An XML document of one test suite. Errors are failures; warnings and notes are its output."""
    cases = _cases(report)
    suites = Xml.Element("testsuites")
    suite = Xml.SubElement(
        suites,
        "testsuite",
        name=f"bringup check {report.model}".strip(),
        package="bringup",
        id="0",
        hostname="localhost",
        timestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        time=f"{report.seconds:.3f}",
        tests=str(len(cases)),
        failures=str(sum(bool(errors) for errors in cases.values())),
        errors="0",
        skipped="0",
    )
    properties = Xml.SubElement(suite, "properties")
    for name, value in {"bringup": __version__, **report.counts}.items():
        Xml.SubElement(properties, "property", name=name, value=str(value))
    for name, errors in cases.items():
        case = Xml.SubElement(
            suite, "testcase", name=name, classname=f"bringup.check.{report.model}".rstrip("."), time="0"
        )
        if errors:
            _fail(case, errors)
    notes = [finding for finding in report.findings if finding.severity is not Severity.ERROR]
    lines = [findings_text(notes, _PLAIN) + summary(report, _PLAIN), shares(report)]
    Xml.SubElement(suite, "system-out").text = "\n".join(filter(None, lines))
    Xml.SubElement(suite, "system-err")
    Xml.indent(suites)
    return Xml.tostring(suites, "unicode", xml_declaration=True) + "\n"


def _fail(case: Xml.Element, errors: list[Diagnostic]) -> None:
    """Ant's schema permits one failure in a case: it lists all errors."""
    first, *others = errors
    more = f" (and {plural(len(others), 'more error')})" if others else ""
    failure = Xml.SubElement(case, "failure", type=first.code, message=first.message + more)
    failure.text = findings_text(errors, _PLAIN).rstrip()


def _cases(report: Report) -> dict[str, list[Diagnostic]]:
    """Every case with its errors. A parameter with several errors fails with all of them."""
    patterns: dict[str, list[str]] = {}
    for name in report.parameters:
        patterns.setdefault(digits(name)[0], []).append(name)
    cases = {pattern: list[Diagnostic]() for pattern in patterns}
    rest: list[Diagnostic] = []
    for error in report.errors:
        for errors in _concerned(cases, error.parameter) or [rest]:
            errors.append(error)
    names = {", ".join(grouped(patterns[pattern])): errors for pattern, errors in cases.items()}
    return names | {REST: rest}


def _concerned(cases: dict[str, list[Diagnostic]], parameter: str) -> list[list[Diagnostic]]:
    """The cases of the parameters, or of the complete subtrees, that an error names: `h.12, lm_head.weight`."""
    roots = {digits(_RANGES.sub("0", group))[0] for group in parameter.split(", ")}
    return [errors for pattern, errors in cases.items() if any(_is_below(pattern, root) for root in roots)]


def _is_below(pattern: str, root: str) -> bool:
    return pattern == root or pattern.startswith(f"{root}.")
