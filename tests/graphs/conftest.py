from __future__ import annotations

from tests.models.conftest import one_thread_for_tiny_models

__all__ = ["one_thread_for_tiny_models"]
