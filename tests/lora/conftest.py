from __future__ import annotations

from tests.cli.conftest import bringup

__all__ = ["bringup"]
