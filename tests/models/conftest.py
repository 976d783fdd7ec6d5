from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a family, `make test` compiles the first configuration for `cpu`; `make test-full` all of them."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            given = item.callspec.params
            cases = list(getattr(item.module, "WRITTEN", getattr(item.module, "CASES", ())))
            if given.get("target") == "cpu" and given.get("checkpoint") in cases[1:]:
                item.add_marker(pytest.mark.slow)


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
