from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.resources.compiles import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A process that has imported what a compile for `cpu` needs."""
    started = Nursery(tmp_path_factory.mktemp("nursery"))
    started.ask({"prepare": "bringup.compile.targets.iree_mlir:prepare"})
    yield started
    started.close()
