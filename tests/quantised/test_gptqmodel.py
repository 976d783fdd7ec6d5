"""GPTQ and AWQ matrices that GPT-QModel packs, with the config words it writes: our rules give what it dequantises.

GPT-QModel requires a newer torch than ours, so it is no dependency: `pip install --no-deps gptqmodel==7.7.0 device-smi
pypcre tokenicer logbar defuser threadpoolctl protobuf pillow` adds it to an environment, and this file runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.models import parity
from tests.quantised.checkpoints import WHOLE_WORDS, is_quantised

gptqmodel = pytest.importorskip("gptqmodel")
gptq_linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch")
awq_linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch_awq")
packers = pytest.importorskip("gptqmodel.utils.model")

# A folder that its configuration opens is removed as the process ends, with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = WHOLE_WORDS["llama of words"]
GROUP = 32


def _numbers(rows: int, columns: int, group: int, bits: int, *, sym: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale and a zero point for each row and group."""
    shape = (rows, columns // group)
    zeros = torch.full(shape, 2 ** (bits - 1)) if sym else torch.randint(1, 2**bits, shape)
    return (torch.rand(shape) * 0.02 + 0.005).half().float(), zeros.float()


def _gptq(weight: torch.Tensor, words: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors of a matrix as they are in a file, and the matrix that GPT-QModel computes with."""
    rows, columns = weight.shape
    group = columns if words.group_size == -1 else words.group_size
    linear = torch.nn.Linear(columns, rows, bias=False)
    linear.weight.data = weight.float()
    layer = gptq_linear.TorchLinear(
        bits=words.bits, group_size=group, sym=words.sym, desc_act=words.desc_act, in_features=columns,
        out_features=rows, bias=False, pack_dtype=torch.int32,
    )  # fmt: skip
    groups = torch.arange(columns) // group
    if words.desc_act:
        groups = groups[torch.randperm(columns)]
    layer.pack_original(linear, *_numbers(rows, columns, group, words.bits, sym=words.sym), groups.to(torch.int32))
    layer.post_init()
    exact = layer.dequantize_weight().T.contiguous()
    if words.format == "gptq":
        packers.convert_gptq_v2_to_v1_format_module(layer, words)
    return {name: value for name, value in layer.state_dict().items() if value is not None}, exact


def _awq(weight: torch.Tensor, words: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    rows, columns = weight.shape
    linear = torch.nn.Linear(columns, rows, bias=False)
    linear.weight.data = weight.float()
    layer = awq_linear.AwqTorchLinear(
        bits=4, group_size=words.group_size, sym=False, desc_act=False, in_features=columns, out_features=rows,
        bias=False,
    )  # fmt: skip
    layer.pack(linear, *_numbers(rows, columns, words.group_size, 4, sym=False))
    exact = layer(torch.eye(columns, dtype=torch.float16)).T.contiguous()
    return dict(layer.state_dict()), exact


@pytest.mark.parametrize(
    "words",
    [
        {"bits": 4, "group_size": GROUP, "sym": True},
        {"bits": 4, "group_size": GROUP, "sym": False, "desc_act": True},
        {"bits": 2, "group_size": GROUP, "sym": False},
        {"bits": 3, "group_size": GROUP, "sym": False, "format": "gptq_v2"},
        {"bits": 3, "group_size": GROUP, "sym": True},
        {"bits": 8, "group_size": -1, "sym": True, "format": "gptq_v2"},
        {"bits": 4, "group_size": GROUP, "sym": False, "quant_method": "awq", "format": "gemm"},
    ],
    ids=lambda words: " ".join(map(str, words.values())),
)
def test_its_own_matrices(words: dict[str, Any], tmp_path: Path) -> None:
    """Every matrix of a Llama, bit for bit: a product of a code and a scale is rounded once, to float16."""
    torch.manual_seed(0)
    written = gptqmodel.QuantizeConfig(**{"desc_act": False, **words})
    packed = _awq if words.get("quant_method") == "awq" else _gptq
    model = parity.load_reference(parity.save_checkpoint(CONFIG, tmp_path))
    tensors, wanted = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for name, values in model.state_dict().items():
        if not is_quantised(name, values.numpy()):
            tensors[name] = values.numpy()
            continue
        parts, exact = packed(values, written)
        tensors |= {f"{name.removesuffix('weight')}{part}": value.numpy() for part, value in parts.items()}
        wanted[name] = exact.numpy()
    job = open_job("llama", dict_checkpoint(tensors, CONFIG.to_dict() | {"quantization_config": written.to_dict()}))
    assert not check(job).findings
    arrays = materialise(job.plan, job.checkpoint)
    assert len(wanted) == 14
    for name, exact in wanted.items():
        np.testing.assert_array_equal(arrays[name].astype(np.float16), exact, err_msg=name)
