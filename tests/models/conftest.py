from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What each parity test found, also when all is well."""
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {value}"
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "parity"
    ]
    if lines:
        terminalreporter.section("parity with transformers")
        terminalreporter.write("\n".join(lines) + "\n")
