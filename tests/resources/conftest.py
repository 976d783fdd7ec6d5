"""Two checkpoints of one tiny model, bundles of them, and a process that compiles them repeatedly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bringup.compile.job import open_job
from tests.resources.compiles import TINY, Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory) -> Iterator[Nursery]:
    started = Nursery(tmp_path_factory.mktemp("nursery"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> list[Path]:
    """Two folders, as published, whose weights differ."""
    folders = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp(f"checkpoint{seed}")
        (folder / "config.json").write_text(json.dumps(TINY))
        headers = open_job("gpt2", "dummy", config=str(folder / "config.json")).checkpoint.headers
        random = np.random.default_rng(seed)
        save_file({name: random.normal(0, 0.3, h.shape).astype(np.float32) for name, h in headers.items()},
                  folder / "model.safetensors")  # fmt: skip
        folders.append(folder)
    return folders
