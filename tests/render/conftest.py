from __future__ import annotations

from pathlib import Path

import pytest

from tests.render.reports import write_sources


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the sources that the reports point into; it is the current folder and GitHub's."""
    folder = tmp_path / "workspace"
    write_sources(folder)
    (folder / ".git").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder))
    return folder
