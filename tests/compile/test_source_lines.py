"""Lines of Python in traced graphs, in versions of torch that can leave them out and in those that cannot."""

from __future__ import annotations

import torch.fx

from bringup.compile.program.lean_tracing import LINES, source_lines


def test_the_setting_is_put_back() -> None:
    before = getattr(torch.fx.config, LINES)
    with source_lines(recorded=before):
        assert getattr(torch.fx.config, LINES) is not before
    assert getattr(torch.fx.config, LINES) is before


def test_a_version_without_the_setting(monkeypatch) -> None:
    """torch 2.11: nothing is changed, and nothing is added."""
    monkeypatch.delattr(torch.fx.config, LINES)
    with source_lines(recorded=False):
        assert not hasattr(torch.fx.config, LINES)
