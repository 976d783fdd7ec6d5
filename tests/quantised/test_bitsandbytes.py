"""What bitsandbytes itself writes and reads on a CPU: its matrices by our rules, and ours by its loader."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.models import parity
from tests.quantised.checkpoints import WHOLE_WORDS, is_quantised, write
from tests.quantised.int4_formats import FORMATS, four_bits, int8

CONFIG = WHOLE_WORDS["llama of words"]
CLOSE = 3e-7  # of the largest: products in another order


@cache
def functional() -> Any:
    """Its functions: importing them takes a second, which a worker with other files does not spend."""
    return pytest.importorskip("bitsandbytes.functional")


def _four(matrix: torch.Tensor, kind: str, block: int, *, nested: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A matrix as `Params4bit` saves it, and as it is dequantised."""
    codes, state = functional().quantize_4bit(matrix, blocksize=block, quant_type=kind, compress_statistics=nested)
    parts = {f"weight.{name}": values for name, values in state.as_dict(packed=True).items()}
    return {"weight": codes, **parts}, _floats(codes, state)


def _floats(codes: torch.Tensor, state: Any) -> torch.Tensor:
    """What it dequantises, as a single row: with AVX-512, 0.50.2 takes other scales where a block runs over rows."""
    shape, state.shape = state.shape, torch.Size([1, state.shape.numel()])
    found = functional().dequantize_4bit(codes, state).reshape(shape)
    state.shape = shape
    return found


def _eight(matrix: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    codes, scales, _ = functional().int8_vectorwise_quant(matrix.half())
    return {"weight": codes, "SCB": scales}, functional().int8_vectorwise_dequant(codes, scales)


@pytest.mark.parametrize(
    ("kind", "block", "nested"),
    [("nf4", 64, False), ("nf4", 64, True), ("fp4", 128, True), ("nf4", 256, True), ("int8", 0, False)],
)
def test_its_own_matrices(kind: str, block: int, nested: bool, tmp_path: Path) -> None:
    """Every matrix of a model as its functions quantise and dequantise it; a block of 256 runs over rows of 64."""
    model = parity.load_reference(parity.save_checkpoint(CONFIG, tmp_path))
    tensors, wanted = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for name, values in model.state_dict().items():
        if not is_quantised(name, values.numpy()):
            tensors[name] = values.numpy()
            continue
        parts, exact = _eight(values) if kind == "int8" else _four(values, kind, block, nested=nested)
        stem = name.removesuffix("weight")
        tensors |= {f"{stem}{part}": array.numpy() for part, array in parts.items()}
        wanted[name] = exact.numpy()
    words = (int8() if kind == "int8" else four_bits(kind, nested=nested)).words
    job = open_job("llama", dict_checkpoint(tensors, CONFIG.to_dict() | {"quantization_config": dict(words)}))
    assert not check(job).findings
    arrays = materialise(job.plan, job.checkpoint)
    for name, exact in wanted.items():
        np.testing.assert_allclose(arrays[name], exact, 0, CLOSE * np.abs(exact).max(), err_msg=name)


@pytest.mark.parametrize("name", ["nf4", "nf4 nested", "fp4 of 128", "int8"])
def test_its_loader_reads_what_we_read(name: str, tmp_path: Path) -> None:
    """The weights of transformers' model, whose linear layers are bitsandbytes' own, dequantised by it."""
    pytest.importorskip("accelerate")
    quantised, _ = write("llama of words", FORMATS[name], tmp_path)
    job = open_job(checkpoint=str(quantised))
    arrays = materialise(job.plan, job.checkpoint)
    model = AutoModelForCausalLM.from_pretrained(quantised, dtype=torch.float32)
    compared = 0
    for module, layer in model.named_modules():
        if not type(layer).__module__.startswith("bitsandbytes"):
            continue
        held = layer.weight
        if name == "int8":
            theirs = functional().int8_vectorwise_dequant(held.data, held.SCB)
        else:
            theirs = _floats(held.data, held.quant_state)
        wanted = theirs.float().numpy()
        np.testing.assert_allclose(arrays[f"{module}.weight"], wanted, 0, CLOSE * np.abs(wanted).max(), err_msg=module)
        compared += 1
    assert compared == 14
