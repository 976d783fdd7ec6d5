from __future__ import annotations

from collections.abc import Iterator

import pytest

from bringup.compile.targets.registry import BUILT_IN
from bringup.graphs.ops.lowering import OpLowering, using
from tests.models.conftest import one_thread_for_tiny_models

__all__ = ["one_thread_for_tiny_models"]


# A target without implementations of its own runs the reference.
OWN = {target.name: target.implementations for target in BUILT_IN if target.implementations}


@pytest.fixture(params=["reference", *OWN])
def implementations(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each target's implementations of ops, run by torch."""
    with using(OpLowering(implementations=OWN.get(request.param, {}))):
        yield request.param
