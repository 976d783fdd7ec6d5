"""IREE's targets for GPUs: a module of the architecture, that bringup does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.compile.pipeline import build
from bringup.compile.runtime.session import load
from bringup.compile.targets.registry import target_named
from bringup.diagnostics import BringupError
from tests.schedule.models import CONTEXT, PREFILL, job_of

# What IREE writes into a module: the PTX of a cubin, the name of an ELF's processor.
CASES = [("iree-cuda:sm_80", b".target sm_80"), ("iree-rocm:gfx942", b"gfx942")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "found"), CASES, ids=[name for name, _ in CASES])
def test_a_bundle_is_compiled_and_not_run(tmp_path: Path, name: str, found: bytes) -> None:
    out = build(job_of("gpt2", tmp_path), out=tmp_path / "b", target=name, max_seq_len=CONTEXT, buckets=(PREFILL,))
    assert found in (out / "module.vmfb").read_bytes()
    for executor in (None, "cuda"):
        with pytest.raises(BringupError, match=f"BU619: `{name}` is for compiling only"):
            load(out, executor)


def test_the_architecture_is_in_the_cache_key() -> None:
    keys = [target_named(f"iree-cuda:{each}").cache_key({}) for each in ("sm_80", "sm_89")]
    assert keys[0] != keys[1]
