from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say the same on a developer's machine and in a step of GitHub Actions."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "BRINGUP_OUTPUT_FORMAT"):
        monkeypatch.delenv(name, raising=False)
