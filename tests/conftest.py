from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say the same on a developer's machine and in a step of GitHub Actions."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "BRINGUP_OUTPUT_FORMAT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiles of one run of the tests share a cache; nobody's own is read or written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_COMPILE_CACHE", str(tmp_path_factory.mktemp("compile-cache")))
        yield
