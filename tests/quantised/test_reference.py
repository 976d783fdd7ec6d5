"""The reference of `verify` for quantised checkpoints: exact weights, and activations that are not rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from bringup.cli.main import cli
from bringup.compile.parity.reference import Reference
from bringup.diagnostics import BringupError
from tests.models import parity
from tests.quantised import fp8_checkpoints
from tests.quantised.checkpoints import CASES, WIDE, write
from tests.quantised.formats import FORMATS as PUBLISHED
from tests.quantised.formats import INT4, INT8, compressed, packed
from tests.quantised.int4_formats import FORMATS as WORDS

pytest.importorskip("compressed_tensors")
pytest.importorskip("bitsandbytes")

VERIFIED = [
    ("nf4", "llama of words"),
    pytest.param("fp4 of 128", "llama of words", marks=pytest.mark.slow),
    pytest.param("fp8", "", marks=pytest.mark.slow),
]
TOKENS = list(range(1, 20))
CLOSE = 1e-5  # of the largest logit: sums of float32 in another order
FP8_TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}


def reference(folder: Path, dtype: str = "float32") -> Reference:
    opened = open_checkpoint(str(folder))
    return Reference(opened, opened.config, dtype)


def assert_exact(quantised: Path, exact: Path) -> None:
    ours, wanted = reference(quantised).logits(TOKENS), reference(exact).logits(TOKENS)
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=CLOSE * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ct-int8", "llama"),
        ("ct-int4-zeros", "llama"),
        ("ct-int4-rows", "llama"),  # scales in bfloat16
        ("ct-int4-rows", "qwen3_moe"),
        ("ct-mxfp4", "llama"),
        ("ct-mxfp4", "qwen3_moe"),  # experts are unpacked to bfloat16
        ("int8", "llama of words"),  # bitsandbytes' own modules round activations
        ("nf4 nested", "llama of words"),
        ("nf4 across rows", "llama of words"),
    ],
)
def test_it_computes_with_the_exact_weights(name: str, family: str, tmp_path: Path) -> None:
    assert_exact(*write(family, (dict(PUBLISHED) | WORDS)[name], tmp_path))


@pytest.mark.parametrize(("name", "family"), [("ct-int4-rows", "qwen3_moe"), ("nf4", "llama of words")])
def test_its_weights_in_bfloat16(name: str, family: str, tmp_path: Path) -> None:
    """The exact weights, rounded once."""
    quantised, exact = write(family, (dict(PUBLISHED) | WORDS)[name], tmp_path)
    ours, wanted = reference(quantised, "bfloat16").model.state_dict(), reference(exact, "bfloat16").model.state_dict()
    assert ours.keys() == wanted.keys()
    for parameter, values in wanted.items():
        assert torch.equal(ours[parameter], values), parameter


def test_activations_are_not_rounded(tmp_path: Path) -> None:
    """As in checkpoints whose activations are quantised too: bringup computes with floats."""
    quantised, exact = write("llama", PUBLISHED["ct-fp8-rows"], tmp_path)
    file = quantised / "config.json"
    config = json.loads(file.read_text("utf-8"))
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = FP8_TOKENS
    file.write_text(json.dumps(config), "utf-8")
    assert_exact(quantised, exact)


def test_groups_with_other_settings(tmp_path: Path) -> None:
    """MLPs in 4 bits, attention in 8: each module by the settings of its own group."""
    quantised, exact = (parity.save_checkpoint(CASES["llama"], tmp_path / name) for name in ("quantised", "exact"))
    parts: dict[str, np.ndarray] = {}
    values = load_file(exact / "model.safetensors")
    for name, matrix in load_file(exact / "model.safetensors").items():
        if "_proj" not in name:
            parts[name] = matrix
            continue
        written, values[name] = packed(matrix, 4, 32) if ".mlp." in name else packed(matrix, 8, 0)
        parts |= {name.removesuffix("weight") + part: array for part, array in written.items()}
    save_file(parts, quantised / "model.safetensors", {"format": "pt"})
    save_file(values, exact / "model.safetensors", {"format": "pt"})
    words: dict[str, Any] = compressed("pack-quantized", INT4)
    group = words["config_groups"]["group_0"]
    words["config_groups"] = {
        "mlp": group | {"targets": ["re:.*mlp.*"]},
        "attention": group
        | {"targets": ["re:.*self_attn.*"], "weights": group["weights"] | {"group_size": None} | INT8},
    }
    config = json.loads((quantised / "config.json").read_text("utf-8"))
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": words}), "utf-8")
    assert_exact(quantised, exact)


def test_weights_that_its_package_rounds(tmp_path: Path) -> None:
    """nvfp4: another reference would differ from the weights by 1 %."""
    quantised, _ = write("llama", PUBLISHED["ct-nvfp4"], tmp_path)
    with pytest.raises(BringupError, match=r"BU703.*rounds the weights of nvfp4 to bfloat16"):
        reference(quantised)


@pytest.mark.parametrize("block", [32, 128])
def test_blocks_that_matrices_cut_off(block: int, tmp_path: Path) -> None:
    """transformers derives the width of blocks from the number of scales: 80 for 160 columns in blocks of 128."""
    quantised = fp8_checkpoints.write(WIDE["llama wide"], tmp_path / "quantised", block)
    exact = parity.save_checkpoint(WIDE["llama wide"], tmp_path / "exact")
    opened, values = open_checkpoint(str(quantised)), dict[str, np.ndarray]()
    stored = {name: opened.read(info) for name, info in opened.headers.items()}
    for name, array in stored.items():
        if (scales := stored.get(f"{name}_scale_inv")) is not None:
            each = scales.repeat(block, 0).repeat(block, 1)[: len(array), : array.shape[1]]
            values[name] = array.astype(np.float32) * each
        elif not name.endswith("_scale_inv"):
            values[name] = array
    save_file(values, exact / "model.safetensors", {"format": "pt"})
    assert_exact(quantised, exact)


@pytest.mark.parametrize(("name", "family"), VERIFIED)
@pytest.mark.parametrize("target", ["cpu", "torch"])
@pytest.mark.slow
def test_verify_in_bfloat16(name: str, family: str, target: str, tmp_path: Path) -> None:
    """A program that computes in bfloat16 with quantised weights; those of float8 state activations in float8."""
    if name == "fp8":
        folder = fp8_checkpoints.write(WIDE["llama wide"], tmp_path / "model", 128)
    else:
        folder, _ = write(family, WORDS[name], tmp_path)
    words = ["verify", "--checkpoint", str(folder), "--dtype", "bfloat16", "--max-seq-len", "64", "--target", target]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "agrees on" in result.output


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_verify_of_an_exported_checkpoint(dtype: str, tmp_path: Path) -> None:
    source = parity.save_checkpoint(CASES["llama"], tmp_path / "floats")
    run = CliRunner().invoke
    out = str(tmp_path / "mxfp4")
    assert run(cli, ["export", "--checkpoint", str(source), "--quantize", "mxfp4", "-o", out]).exit_code == 0
    result = run(cli, ["verify", "--checkpoint", out, "--dtype", dtype, "--max-seq-len", "64"])
    assert result.exit_code == 0, result.output
    assert "agrees on torch with transformers" in result.output
