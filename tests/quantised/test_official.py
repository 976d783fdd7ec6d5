"""The same checkpoints by transformers' own loaders, which call the package compressed-tensors.

Not in the table, as transformers 5.23 with compressed-tensors 0.20 does not load them: of experts int8, zero points and
blocks (it raises), and NVFP4 (it leaves out `weight_global_scale`); `actorder` of groups, which was removed. Of those
`test_formats.py` computes the values by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config

from bringup.compile.job import open_job
from tests.models import family as shown
from tests.quantised.checkpoints import write
from tests.quantised.formats import FORMATS

pytest.importorskip("compressed_tensors")
pytestmark = pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning")  # to dequantise

IN_BFLOAT16 = ("ct-nvfp4", "ct-int4-rows")  # computed in the dtype of their scales, or of what float4 is unpacked to
OF_LLAMA = [name for name in FORMATS if name.startswith("ct-") and name != "ct-int4-order"]
OF_EXPERTS = ["ct-int4", "ct-int8-packed", "ct-fp8-rows", "ct-mxfp4"]
PAIRS = [
    *((name, "llama") for name in OF_LLAMA),
    *((name, family) for name in OF_EXPERTS for family in ("qwen3_moe", "deepseek_v3")),
    ("fp8-inv", "llama"),
]


def official(folder: Path, **settings: Any) -> torch.nn.Module:
    """A model as transformers loads it, in float32."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, attn_implementation="eager", **settings
    )
    assert not info["missing_keys"]
    return model.eval()


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_values(name: str, family: str, tmp_path: Path) -> None:
    """What a format stands for is what its own library takes it for."""
    quantised, exact = write(family, FORMATS[name], tmp_path)
    config = CompressedTensorsConfig if name.startswith("ct-") else FineGrainedFP8Config
    model = official(quantised, quantization_config=config(dequantize=True))
    theirs, wanted = model.state_dict(), official(exact).state_dict()
    assert theirs.keys() == wanted.keys()
    for parameter, values in theirs.items():
        values, ours = values.float(), wanted[parameter].numpy()
        if name in IN_BFLOAT16:
            np.testing.assert_allclose(values.numpy(), ours, rtol=float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps))
        else:
            np.testing.assert_array_equal(values.numpy(), ours, parameter)


@pytest.mark.parametrize(("name", "family"), [("ct-int4-zeros", "llama"), ("ct-fp8-rows", "deepseek_v3")])
def test_logits(name: str, family: str, tmp_path: Path) -> None:
    """From the same files, by the official loader and by bringup."""
    quantised, _ = write(family, FORMATS[name], tmp_path)
    model = official(quantised, quantization_config=CompressedTensorsConfig(dequantize=True))
    tokens = list(range(1, shown.PROMPT + 4))
    wanted = shown.stepwise(model, tokens, shown.PROMPT)
    ours = shown.eager_logits(open_job(checkpoint=str(quantised)), tokens, shown.PROMPT)
    assert abs(ours - wanted).max() <= shown.WORST["torch"] * abs(wanted).max()
