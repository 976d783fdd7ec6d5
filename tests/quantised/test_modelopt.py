"""ModelOpt's blocks of 128 and its mixed precision, bit for bit in four families.

Sources: NVIDIA ModelOpt, modelopt/torch/export/quant_utils.py (`quantized_layers` of MIXED_PRECISION, `FP8_PB_WO`), and
vLLM, vllm/model_executor/layers/quantization/modelopt.py, which reads both. Values are those of `formats.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.checkpoint import Checkpoint
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.check.values import value_findings
from bringup.compile.job import Job, open_job
from bringup.compile.pipeline import check
from tests.quantised.checkpoints import CASES, WIDE, write
from tests.quantised.formats import FORMATS, FP8_PB_WO

LAYERS = {"0": "modelopt-nvfp4", "1": "modelopt-fp8"}  # which format each layer of the mixed checkpoint is in
ALGORITHMS = {"modelopt-nvfp4": {"quant_algo": "NVFP4", "group_size": 16}, "modelopt-fp8": {"quant_algo": "FP8"}}


def same_values(job: Job, plain: Job) -> None:
    """The parameters are those of the checkpoint of exact values, and nothing is said of either."""
    assert not check(job).findings
    assert value_findings(job) == []
    arrays, wanted = materialise(job.plan, job.checkpoint), materialise(plain.plan, plain.checkpoint)
    assert arrays.keys() == wanted.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, wanted[name], name)


@pytest.mark.parametrize("family", WIDE)
def test_blocks_of_128(family: str, tmp_path: Path) -> None:
    """Two blocks each way, of which the second is cut off."""
    quantised, exact = write(family, FP8_PB_WO, tmp_path)
    same_values(open_job(checkpoint=str(quantised)), open_job(checkpoint=str(exact)))


def mixed(family: str, folder: Path, method: str = "modelopt") -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint whose layers are in two formats, and one of the exact values."""
    stored: dict[str, np.ndarray] = {}
    plain: dict[str, np.ndarray] = {}
    words: dict[str, object] = {}
    for layer, name in LAYERS.items():
        places = write(family, FORMATS[name], folder)
        for place, held in zip(places, (stored, plain), strict=True):
            opened = open_job(checkpoint=str(place)).checkpoint
            words = {**(opened.config or {})}
            own = [info for key, info in opened.headers.items() if f"layers.{layer}." in key or "layers." not in key]
            held |= {info.name: opened.read(info).copy() for info in own}
    layers = {
        key.removesuffix(".weight_scale"): ALGORITHMS[LAYERS[key.split("layers.")[1].partition(".")[0]]]
        for key in stored
        if key.endswith(".weight_scale")
    }
    said = {
        "quant_method": method,
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
        "ignore": ["lm_head"],
    }
    words.pop("quantization_config", None)
    return dict_checkpoint(stored, words | {"quantization_config": said}), dict_checkpoint(plain, words)


@pytest.mark.parametrize("family", CASES)
def test_mixed_precision(family: str, tmp_path: Path) -> None:
    """One layer in NVFP4, the other in fp8; a layer whose settings are those of the other is found by headers."""
    job, plain = (open_job(checkpoint=each) for each in mixed(family, tmp_path))
    same_values(job, plain)
    text = json.dumps(job.config["quantization_config"]).replace('"NVFP4"', '"FP8"').replace(', "group_size": 16', "")
    wrong = open_job(checkpoint=job.checkpoint, config={**job.config, "quantization_config": json.loads(text)})
    assert {finding.code for finding in check(wrong).findings} <= {"BU102", "BU108", "BU137", "BU105"}
    assert check(wrong).findings
