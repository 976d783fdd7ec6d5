"""Bundles for AMD GPUs, and the emulated runtime that runs them."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bringup.compile.cache.store import default_store
from bringup.compile.gpu.kernel_plan import FILE, ROCM_FILES, plan_from_json
from bringup.compile.kernels.aot import compile_kernels
from bringup.compile.kernels.compiled import Compiled
from bringup.compile.pipeline import build
from tests.hip.emulated_runtime import EmulatedHip
from tests.hip.emulated_runtime import build as build_library
from tests.schedule.models import CONTEXT, PREFILL, job_of

STANDS_IN = "sm_80"  # its PTX stands for the code of a kernel
MEMORY = 64 << 20
SETTINGS: dict[str, Any] = {"max_seq_len": CONTEXT, "buckets": (PREFILL,)}
# Both architectures, both models, learned positions and rotary ones.
BUNDLES = {"gpt2": "gfx942", "llama": "gfx90a"}
FEATURES = {"gfx942": ":sramecc+:xnack-", "gfx90a": ":sramecc+:xnack-"}
Started = Callable[..., EmulatedHip]


@pytest.fixture(scope="session")
def rocm_bundles(tmp_path_factory) -> Callable[[str], Path]:
    """Tiny models in float32, by name; each is compiled once."""
    root = tmp_path_factory.mktemp("rocm")

    @cache
    def once(name: str) -> Path:
        return build(job_of(name, root / name), out=root / f"{name}.b", target=f"rocm:{BUNDLES[name]}", **SETTINGS)

    return once


@pytest.fixture(scope="session")
def runtime(tmp_path_factory) -> Path:
    """The library of the emulated runtime."""
    return build_library(tmp_path_factory.mktemp("runtime"))


@pytest.fixture
def started(runtime, tmp_path, monkeypatch) -> Iterator[Started]:
    """Starts the emulated runtime of a device for a bundle; programs find a copy of its library in ROCM_PATH."""
    runtimes: list[EmulatedHip] = []

    def start(bundle: Path | None, name: str = "gfx942:sramecc+:xnack-", nbytes: int = MEMORY) -> EmulatedHip:
        folder = tmp_path / f"rocm{len(runtimes)}"
        (folder / "lib").mkdir(parents=True)
        library = ctypes.CDLL(shutil.copy(runtime, folder / "lib"))
        monkeypatch.setenv("ROCM_PATH", str(folder))
        runtimes.append(EmulatedHip(library, stand_ins(bundle) if bundle else {}, name, nbytes))
        return runtimes[-1]

    yield start
    runtimes.clear()


def stand_ins(bundle: Path) -> dict[str, Compiled]:
    """Each kernel of a bundle compiled for NVIDIA, by the SHA-256 of its hsaco."""
    plan = plan_from_json(json.loads((bundle / FILE).read_text("utf-8")))
    compiled = compile_kernels(plan.kernels, STANDS_IN, default_store())
    images = {kernel: ROCM_FILES.binary(bundle, each.digest).read_bytes() for kernel, each in plan.kernels.items()}
    return {hashlib.sha256(image).hexdigest(): compiled[kernel] for kernel, image in images.items()}
