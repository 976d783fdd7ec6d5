from __future__ import annotations

import pytest

OFTEN = ("host", "generic")  # the kernels that most users run, and those that any processor runs


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the instruction sets between the portable one and that of this processor are slow."""
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if parameters.get("machine", "host") not in OFTEN:
            item.add_marker(pytest.mark.slow)
