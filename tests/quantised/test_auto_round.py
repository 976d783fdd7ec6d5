"""Checkpoints that AutoRound exports for other programs: GPTQ's and AWQ's keys with its own notes next to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup.adapters.apply.materialise import materialise
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.quantised.checkpoints import write
from tests.quantised.int4_formats import awq, gptq

# As in config.json of Intel/Qwen3-14B-int4-AutoRound-gptq-inc, but for the keys that GPTQ has too.
NOTES: dict[str, Any] = {
    "act_bits": 16, "act_data_type": "int", "act_dynamic": True, "act_group_size": 128, "act_sym": True, "amp": True,
    "autoround_version": "0.5.1", "batch_size": 8, "data_type": "int", "enable_minmax_tuning": True,
    "enable_norm_bias_tuning": False, "enable_quanted_input": True, "gradient_accumulate_steps": 1, "iters": 1000,
    "low_gpu_mem_usage": True, "lr": 0.001, "minmax_lr": 0.001, "nsamples": 512, "scale_dtype": "torch.float16",
    "seqlen": 2048, "super_bits": None, "super_group_size": None, "to_quant_block_names": None,
}  # fmt: skip
FORMATS = {"gptq": gptq(sym=True), "awq": awq()}


def noted(name: str, folder: Path, **more: Any) -> tuple[Path, Path]:
    """A checkpoint in a format with AutoRound's notes and some other keys, and its exact values."""
    quantised, exact = write("llama of words", FORMATS[name], folder)
    config = json.loads((quantised / "config.json").read_text("utf-8"))
    config["quantization_config"] |= NOTES | more
    (quantised / "config.json").write_text(json.dumps(config), "utf-8")
    return quantised, exact


@pytest.mark.parametrize("name", FORMATS)
def test_notes_are_not_findings(name: str, tmp_path: Path) -> None:
    quantised, exact = noted(name, tmp_path, static_kv_dtype=None, supported_types=["Linear"])
    job, plain = open_job(checkpoint=str(quantised)), open_job(checkpoint=str(exact))
    assert [finding for finding in check(job).findings if finding.severity.name != "NOTE"] == []
    ours, wanted = materialise(job.plan, job.checkpoint), materialise(plain.plan, plain.checkpoint)
    for parameter, array in wanted.items():
        np.testing.assert_array_equal(ours[parameter], array, parameter)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("key", "value"), [("data_type", "mx_fp"), ("act_bits", 8)])
def test_other_values_are_errors(name: str, key: str, value: object, tmp_path: Path) -> None:
    quantised, _ = noted(name, tmp_path, **{key: value})
    (error,) = check(open_job(checkpoint=str(quantised))).errors
    assert (error.code, error.parameter) == ("BU122", key)


@pytest.mark.parametrize("name", FORMATS)
def test_notes_need_the_version(name: str, tmp_path: Path) -> None:
    """Without AutoRound's version, a key of its notes is unknown, as any other key."""
    quantised, _ = noted(name, tmp_path)
    config = json.loads((quantised / "config.json").read_text("utf-8"))
    del config["quantization_config"]["autoround_version"]
    (quantised / "config.json").write_text(json.dumps(config), "utf-8")
    assert {error.code for error in check(open_job(checkpoint=str(quantised))).errors} == {"BU120"}
