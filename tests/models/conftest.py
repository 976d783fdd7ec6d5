from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_for_tiny_models(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a busy machine torch's threads wait longer for one another than the whole of a tiny model takes."""
    before = torch.get_num_threads()
    if request.node.get_closest_marker("slow") is None:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
