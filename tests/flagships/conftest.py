from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.flagships.headers import Tensors, tensors_of, write
from tests.flagships.published import BY_NAME

Written = Callable[[str], tuple[Path, Tensors]]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A flagship's folder, written when it is first asked for, and its tensors."""

    @cache
    def make(name: str) -> tuple[Path, Tensors]:
        tensors = tensors_of(BY_NAME[name])
        return write(tmp_path_factory.mktemp(name), BY_NAME[name], tensors), tensors

    return make
