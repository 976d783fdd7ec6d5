"""docs/support.md has every family and architecture, and its cells are what `compile` finds."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import support
from bringup.compile.kernels.architectures import ARCHITECTURES
from bringup.compile.pipeline import build
from bringup.compile.targets.gpu import GPU_TARGETS
from bringup.diagnostics import BringupError
from bringup.graphs.registry import FAMILIES
from tests.models.family import written
from tests.schedule.models import job_of
from tests.schedule.test_refused import job_with

REFUSED = re.compile(r"`([\w-]+)`(?: at (\w+)[\w ]*)?: (BU\d{3})")


def cells() -> dict[str, dict[str, str]]:
    """The cells of the page, by family and then by target."""
    text = support.PAGE.read_text("utf-8")
    header = next(line for line in text.splitlines() if line.startswith("| family |"))
    targets = re.findall(r"`([\w:]+)`", header)
    return {name: dict(zip(targets, found.split(" | "), strict=True)) for name, _, found in support.ROW.findall(text)}


def listed() -> list[tuple[str, ...]]:
    """The configurations that cells list: family, target, configuration, the first dtype or "" for all, code."""
    return [
        (name, target, *found)
        for name, row in cells().items()
        for target, text in row.items()
        for found in REFUSED.findall(text)
    ]


def test_the_page_has_every_family_and_architecture() -> None:
    found = cells()
    assert list(found) == sorted(family.name for family in FAMILIES)
    for name, row in found.items():
        assert list(row) == [target.name for target in GPU_TARGETS], name
        assert [target.partition(":")[2] for target in row] == list(ARCHITECTURES), name
        assert [each for each in row.values() if each != "all" and REFUSED.sub("", each).strip(", ")] == [], name


@pytest.mark.slow
def test_cells_are_what_compile_finds(tmp_path: Path) -> None:
    """A model that every architecture has kernels for, an operation without kernels, one without a schedule; and the
    first configuration that a cell lists."""
    assert support.errors_of(job_of("gpt2", tmp_path)) == {}
    assert set(cells()["gpt2"].values()) == {support.cell({})}
    for code, function in {"BU504": lambda x: x.cumsum(0), "BU403": lambda x: x @ torch.linalg.inv(x.T @ x)}.items():
        job = job_with(function, tmp_path / code)
        errors = support.errors_of(job)
        assert list(errors) == list(ARCHITECTURES)
        for architecture in ("sm_90", "gfx942"):
            with pytest.raises(BringupError, match=code) as caught:
                build(
                    job, out=tmp_path / "b", target=support.TARGETS[architecture], max_seq_len=support.CONTEXT,
                    buckets=(support.PREFILL,), max_batch_size=support.BATCH,
                )  # fmt: skip
            assert caught.value.findings[0].message == errors[architecture].findings[0].message
    for name, target, case, dtype, code in listed()[:1]:
        module = import_module(f"tests.models.test_{name}")
        job = written(module, case, tmp_path / "listed", dtype or support.DTYPES[0]).job()
        with pytest.raises(BringupError, match=code):
            build(job, out=tmp_path / "b", target=target, max_seq_len=support.CONTEXT, buckets=(support.PREFILL,))
    codes = {("one", "BU504"): support.DTYPES, ("other", "BU403"): ("float16",)}
    assert support.cell(codes) == "`one`: BU504, `other` at float16: BU403"
