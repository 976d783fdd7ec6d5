"""TensorRT-LLM's checkpoints as a source: what `--to trtllm` wrote of every family is read by the same table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bringup as package
from bringup.adapters.trtllm.names import NAMES
from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.test_convert import equal, save

PHI3 = {"architecture": "Phi3ForCausalLM", "attn_bias": False, "mlp_bias": False, "published": {}}


def written(bringup: Bringup, place: Path, name: str, *words: object) -> tuple[Path, Path]:
    """A family's published folder and its ranks, as another program writes them."""
    source = save(place / "source", *getattr(models, name)())
    result = bringup("convert", "--checkpoint", source, "--to", "trtllm", *words, "-o", place / "ranks")
    assert result.exit_code == 0, result.output
    (place / "ranks" / "bringup.json").unlink()
    return source, place / "ranks"


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("name", sorted(NAMES))
def test_back(bringup: Bringup, tmp_path: Path, name: str, tp: int, pp: int) -> None:
    """The arrays of the original, bit for bit; with 4 ranks two have each key head of those that have 2."""
    source, ranks = written(bringup, tmp_path, name, "--tp", tp, "--pp", pp)
    checked = bringup("check", "--checkpoint", ranks)
    assert checked.exit_code == 0, checked.output
    for checkpoint, out in ((source, "own"), (ranks, "back")):
        result = bringup("convert", "--checkpoint", checkpoint, "-o", tmp_path / out)
        assert result.exit_code == 0, result.output
    found, wanted = (load_file(tmp_path / out / "model.safetensors") for out in ("back", "own"))
    assert {array.dtype for array in found.values()} == {np.dtype("f4")}
    equal(found, wanted)
    before, after = (package.open_job(checkpoint=place).graph.config for place in (source, ranks))
    assert after == before


@pytest.mark.parametrize(
    ("words", "base", "scaling"),
    [
        ({}, 1e4, None),  # the family's default
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}, 2e4, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1e4, {"type": "linear", "factor": 2.0}),
    ],
)
def test_rope(
    bringup: Bringup, tmp_path: Path, words: dict[str, object], base: float, scaling: dict[str, object] | None
) -> None:
    """`RotaryScalingType.from_string` of tensorrt_llm/functional.py has no type `default`; transformers writes it."""
    tensors, config = models.llama()
    source = save(tmp_path / "source", tensors, config | words)
    result = bringup("convert", "--checkpoint", source, "--to", "trtllm", "-o", tmp_path / "ranks")
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "ranks" / "config.json").read_text("utf-8"))
    assert (written["rotary_base"], written["rotary_scaling"]) == (base, scaling)
    before, after = (package.open_job(checkpoint=tmp_path / name).graph.config for name in ("source", "ranks"))
    assert after == before


def test_uneven_stages(bringup: Bringup, tmp_path: Path) -> None:
    """How many layers each stage has is in its files: 1 and 2 of 3."""
    source = save(tmp_path / "source", *models.llama(layers=3))
    words = ["--to", "trtllm", "--pp", 2, "--stage-layers", "1,2"]
    assert bringup("convert", "--checkpoint", source, *words, "-o", tmp_path / "ranks").exit_code == 0
    own, back = (package.adapt(package.open_job(checkpoint=tmp_path / name)) for name in ("source", "ranks"))
    equal(back, own)


def test_a_file_too_many(bringup: Bringup, tmp_path: Path) -> None:
    """Of two ranks' files and a config of one: one finding says so, whatever else does not fit then."""
    _, ranks = written(bringup, tmp_path, "llama", "--tp", 2)
    config = json.loads((ranks / "config.json").read_text("utf-8"))
    (ranks / "config.json").write_text(json.dumps(config | {"mapping": {"tp_size": 1}}), "utf-8")
    checked = bringup("check", "--checkpoint", ranks)
    assert checked.exit_code == 1
    assert "BU229" in checked.output
    assert "it also has `rank1.safetensors`" in checked.output


def test_another_division(bringup: Bringup, tmp_path: Path) -> None:
    """Files of two ranks become those of four, as the published checkpoint does."""
    source, ranks = written(bringup, tmp_path, "gpt2", "--tp", 2)
    for checkpoint, out in ((source, "own"), (ranks, "back")):
        result = bringup("convert", "--checkpoint", checkpoint, "--to", "trtllm", "--tp", 4, "-o", tmp_path / out)
        assert result.exit_code == 0, result.output
    for rank in range(4):
        file = f"rank{rank}.safetensors"
        equal(load_file(tmp_path / "back" / file), load_file(tmp_path / "own" / file))


def test_words_of_its_own_alone(bringup: Bringup, tmp_path: Path) -> None:
    """Without what only bringup writes, TensorRT-LLM's words make the same graph, of a checkpoint that ties nothing."""
    source, ranks = written(bringup, tmp_path, "qwen3", "--tp", 2)
    words = json.loads((ranks / "config.json").read_text("utf-8"))
    assert words.pop("published") == {"model_type": "qwen3", "tie_word_embeddings": False}
    (ranks / "config.json").write_text(json.dumps(words), "utf-8")
    before, after = (package.open_job(checkpoint=place).graph.config for place in (source, ranks))
    assert after == replace(before, tied_head=after.tied_head)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architecture": "FalconForCausalLM"}, "error[BU125]: no graph supports the architecture `FalconForCausalLM`"),
        (PHI3, "error[BU140]: the form `trtllm` is not defined for `phi3`"),
        ({"quantization": {"quant_algo": "FP8"}}, "FP8"),
        ({"num_hidden_layers": 3}, "error[BU101]"),
        ({"hidden_size": 32}, "error[BU1"),
        ({"mapping": {"tp_size": 1, "pp_size": 2}}, "error[BU1"),
    ],
)
def test_words_that_do_not_fit(bringup: Bringup, tmp_path: Path, change: dict[str, object], said: str) -> None:
    _, ranks = written(bringup, tmp_path, "llama", "--tp", 2)
    words = json.loads((ranks / "config.json").read_text("utf-8"))
    (ranks / "config.json").write_text(json.dumps(words | change), "utf-8")
    result = bringup("check", "--checkpoint", ranks)
    assert (result.exit_code, said in result.output) == (1, True), result.output


def test_a_tensor_that_one_rank_lacks(bringup: Bringup, tmp_path: Path) -> None:
    _, ranks = written(bringup, tmp_path, "llama", "--tp", 2)
    tensors = load_file(ranks / "rank1.safetensors")
    del tensors["transformer.layers.1.mlp.fc.weight"]
    tensors["transformer.layers.0.mlp.gate.weight"] = np.zeros((3, 16), "f4")
    save_file(tensors, ranks / "rank1.safetensors")
    result = bringup("check", "--checkpoint", ranks)
    assert result.exit_code == 1
    assert "`rank1.transformer.layers.1.mlp.fc.weight`" in result.output
    assert "`rank1.transformer.layers.0.mlp.gate.weight`" in result.output
