"""Large quantised checkpoints, header by header: `check` passes them, and 8 ranks divide them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flagships.headers import nbytes
from tests.flagships.measured import check
from tests.flagships.quantised import QUANTISED


@pytest.mark.parametrize(
    "name", [name if "llama" in name else pytest.param(name, marks=pytest.mark.slow) for name in QUANTISED]
)
def test_check_passes(name: str, tmp_path: Path) -> None:
    flagship = QUANTISED[name]
    folder, tensors = tmp_path, flagship.write(tmp_path)
    found = check(folder)
    assert (found.code, found.report["findings"]) == (0, [])
    counts = found.report["counts"]
    assert counts["tensors"] == counts["consumed"] + counts["dropped"] == len(tensors)
    assert not found.modules & {"torch", "numpy", "transformers", "iree"}
    if flagship.ranks < 8:  # experts' 1536 rows are 12 blocks of 128
        assert {finding["code"] for finding in check(folder, "--tp", "8").report["findings"]} == {"BU136"}
    divided = check(folder, "--tp", str(flagship.ranks)).report
    assert divided["findings"] == []
    assert len(set(divided["bytes_per_rank"])) == 1
    print(f"{name}: {len(tensors)} tensors, {nbytes(tensors)} bytes, {found.report['seconds']} s")


@pytest.mark.parametrize("name", ["llama-3.1-70b-awq", "llama-3.1-70b-gptq"])
def test_ranks_that_would_cut_a_group_are_refused(name: str, tmp_path: Path) -> None:
    """28672 inputs are 224 groups of 128: 32 ranks have 7 each, 64 would cut them."""
    QUANTISED[name].write(tmp_path)
    [finding] = check(tmp_path, "--tp", "64").report["findings"]
    assert (finding["code"], finding["parameter"]) == ("BU136", "model.layers.0.mlp.down_proj.weight")
    assert (
        "splitting `f` (28672) over 64 ranks gives 448 each, which cuts quantisation blocks of 128"
        in (finding["message"])
    )
    assert finding["help"].endswith("every axis divides among 32 ranks")
    assert check(tmp_path, "--tp", "32").code == 0
