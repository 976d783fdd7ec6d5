"""Large quantised checkpoints, header by header: `check` passes them, and 8 ranks divide them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flagships.headers import nbytes, write
from tests.flagships.measured import check
from tests.flagships.quantised import QUANTISED


@pytest.mark.parametrize(
    "name", [name if "llama" in name else pytest.param(name, marks=pytest.mark.slow) for name in QUANTISED]
)
def test_check_passes(name: str, tmp_path: Path) -> None:
    flagship = QUANTISED[name]
    tensors = flagship.stored()
    folder = write(tmp_path, flagship, tensors)
    if flagship.sidecar:
        (folder / "hf_quant_config.json").write_text(json.dumps(flagship.sidecar), "utf-8")
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
