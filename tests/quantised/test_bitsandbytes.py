"""What bitsandbytes itself writes and reads on a CPU: its matrices by our rules, and ours by its loader."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen3MoeConfig

from bringup.adapters.apply.materialise import materialise
from bringup.adapters.checkpoints.memory import dict_checkpoint
from bringup.compile.job import open_job
from bringup.compile.pipeline import check
from tests.models import family as shown
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


def dequantised(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The matrices of the modules of bitsandbytes in a model of transformers, as it dequantises them."""
    for module, layer in model.named_modules():
        if type(layer).__module__.startswith("bitsandbytes"):
            held: Any = layer.weight
            eight = not hasattr(held, "quant_state")
            yield module, _int8(held) if eight else _floats(held.data, held.quant_state)


def _int8(held: Any) -> torch.Tensor:
    codes, scales = (held.CB, held.SCB) if held.CB is not None else (held.data, held.SCB)
    return functional().int8_vectorwise_dequant(codes, scales)


@pytest.mark.parametrize("name", ["nf4", "nf4 nested", "fp4 of 128", "int8"])
def test_its_loader_reads_what_we_read(name: str, tmp_path: Path) -> None:
    """The weights of transformers' model, whose linear layers are bitsandbytes' own, dequantised by it."""
    pytest.importorskip("accelerate")
    quantised, _ = write("llama of words", FORMATS[name], tmp_path)
    job = open_job(checkpoint=str(quantised))
    arrays = materialise(job.plan, job.checkpoint)
    model = AutoModelForCausalLM.from_pretrained(quantised, dtype=torch.float32)
    modules = dict(dequantised(model))
    for module, theirs in modules.items():
        wanted = theirs.float().numpy()
        np.testing.assert_allclose(arrays[f"{module}.weight"], wanted, 0, CLOSE * np.abs(wanted).max(), err_msg=module)
    assert len(modules) == 14


MOES = {
    "mixtral": WHOLE_WORDS["mixtral of words"],
    "qwen3_moe": Qwen3MoeConfig(
        vocab_size=131, num_hidden_layers=2, max_position_embeddings=256, hidden_size=64, moe_intermediate_size=32,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=4, num_experts_per_tok=2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", MOES)
@pytest.mark.parametrize("bits", [4, 8])
def test_experts_that_transformers_leaves_as_floats(family: str, bits: int, tmp_path: Path) -> None:
    """transformers 5 converts `Linear` modules, and the experts of a layer are one parameter: they are saved as floats,
    and the config has no list of them. Logits are those of transformers with the dequantised matrices."""
    functional()
    plain = parity.save_checkpoint(MOES[family], tmp_path / "plain")
    kind: dict[str, Any] = {"load_in_8bit": True} if bits == 8 else {
        "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=BitsAndBytesConfig(**kind), dtype=torch.float32, **parity.PLAIN
    )
    model.save_pretrained(tmp_path / "saved")
    job = open_job(checkpoint=str(tmp_path / "saved"))
    assert not check(job).findings
    experts = [info for name, info in job.checkpoint.headers.items() if ".experts." in name]
    assert {info.dtype for info in experts} == {"float32"}
    assert any(
        name.endswith("o_proj.weight") and info.dtype != "float32" for name, info in job.checkpoint.headers.items()
    )
    reference = parity.load_reference(plain)
    for name, theirs in dequantised(model):
        reference.get_submodule(name).weight.data = theirs.float()
    tokens = parity.random_tokens(24, 131)
    with torch.no_grad():
        wanted = reference(torch.tensor([tokens])).logits[0].numpy()
    ours = shown.eager_logits(job, tokens, len(tokens))
    assert abs(ours - wanted[-len(ours) :]).max() <= shown.WORST["torch"] * abs(wanted).max()
