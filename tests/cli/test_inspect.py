"""`bringup inspect`: every format that is opened, words of configs, and what cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.adapters import llama_cpp
from tests.adapters.test_dialects import CASES
from tests.adapters.test_wheels import wheel
from tests.cli.conftest import SMALL, Bringup
from tests.cli.headers import gpt2_config, gpt2_shapes, write_checkpoint
from tests.models import parity

LAYERS = ("model.layers.{}.mlp.up_proj.weight", (6, 4)), ("model.layers.{}.norm.weight", (4,))
NEW = {
    "architectures": ["NewForCausalLM"], "model_type": "new", "hidden_size": 4, "intermediate_size": 6,
    "num_attention_heads": 2, "num_hidden_layers": 3, "vocab_size": 9, "rms_norm_eps": 1e-5, "sparkle": 2.5,
}  # fmt: skip


def sharded(folder: Path, config: dict[str, Any] | None = NEW) -> Path:
    """Three layers in two files with an index; layer 1 is wider than the others."""
    folder.mkdir()
    where: dict[str, str] = {}
    for file, layers in (("a.safetensors", (0, 1)), ("b.safetensors", (2,))):
        tensors = {
            name.format(layer): np.zeros(tuple(size * (1 + layer % 2) for size in shape), np.float16)
            for layer in layers
            for name, shape in LAYERS
        }
        tensors |= {"head.weight": np.zeros((9, 4), np.float32)} if layers == (2,) else {}
        save_file(tensors, folder / file)
        where |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "tokenizer.json").write_text("{}")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def inspected(bringup: Bringup, *words: str | Path) -> dict[str, Any]:
    result = bringup("inspect", *words, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout, parse_constant=pytest.fail)


def test_numbers_that_json_does_not_have(bringup: Bringup, tmp_path: Path) -> None:
    words = {"high": float("inf"), "ranges": [float("-inf"), {"none": float("nan")}], "low": 1e-30}
    found = inspected(bringup, sharded(tmp_path / "new", NEW | words))
    unread = found["config"]["unread"]
    assert {key: unread[key] for key in words} == {
        "high": "Infinity", "ranges": ["-Infinity", {"none": "NaN"}], "low": 1e-30
    }  # fmt: skip


def test_a_sharded_folder_of_an_unknown_architecture(bringup: Bringup, tmp_path: Path) -> None:
    found = inspected(bringup, sharded(tmp_path / "new"))
    groups = {(each["name"], each["count"], tuple(each["shape"])): each for each in found["tensors"]["groups"]}
    up = "model.layers.{}.mlp.up_proj.weight"
    assert groups.keys() == {
        ("head.weight", 1, (9, 4)),
        (up.format("{0,2}"), 2, (6, 4)),
        (up.format(1), 1, (12, 8)),
        ("model.layers.{0,2}.norm.weight", 2, (4,)),
        ("model.layers.1.norm.weight", 1, (8,)),
    }
    assert groups[up.format("{0,2}"), 2, (6, 4)]["bytes"] == 2 * 24 * 2
    assert found["tensors"]["count"] == 7
    assert found["tensors"]["bytes"] == sum(each["bytes"] for each in groups.values())
    assert found["tensors"]["dtypes"].keys() == {"float16", "float32"}
    assert (found["family"], found["architectures"]) == (None, ["NewForCausalLM"])
    assert len(found["files"]) == 2
    assert "sparkle" in found["config"]["unread"]
    assert found["config"]["neutral"].keys() == {"architectures", "model_type"}
    assert found["near"][0]["unread"] == ["sparkle"]  # all else is what many decoders have
    assert found["tokenizer"] == {"tokenizer.json": 2}


def test_text(bringup: Bringup, tmp_path: Path) -> None:
    lines = [" ".join(line.split()) for line in bringup("inspect", sharded(tmp_path / "new")).stdout.splitlines()]
    assert "model.layers.{0,2}.norm.weight 2 [4] float16 16 bytes" in lines
    assert "architecture: NewForCausalLM; no family supports it" in lines
    assert any(line.startswith("draft a new family: bringup init --checkpoint ") for line in lines)
    assert "sparkle 2.5" in lines
    assert any(line.endswith(" leaves unread: sparkle") for line in lines)


def test_a_known_family_and_its_words(bringup: Bringup, tmp_path: Path) -> None:
    config = gpt2_config(**SMALL) | {"n_layer": 3, "summary_type": "cls_index", "sparkle": True}
    config |= {"activation_function": "sparkle"}
    folder = write_checkpoint(tmp_path / "small", gpt2_shapes(**SMALL), config)
    found = inspected(bringup, folder)
    assert (found["family"], found["near"]) == ("gpt2", [])
    assert found["config"]["known"]["n_layer"] == 3
    assert found["config"]["neutral"]["summary_type"] == "cls_index"
    assert found["config"]["unread"] == {"sparkle": True}
    assert [each["parameter"] for each in found["config"]["refused"]] == ["activation_function"]
    assert "h.{0..2}.attn.c_attn.weight" in {each["name"] for each in found["tensors"]["groups"]}
    text = bringup("inspect", folder).stdout
    assert "supported by the family gpt2" in text
    assert "values that the gpt2 graph rejects" in text


def test_a_tied_head(bringup: Bringup, small: Path) -> None:
    assert inspected(bringup, small)["tied"] == {"lm_head.weight": "wte.weight"}


def test_a_gguf_file(bringup: Bringup, tmp_path: Path) -> None:
    """Its words are config.json's where a dialect translates them."""
    arch, config = CASES["qwen2"]
    folder = parity.save_checkpoint(config, tmp_path / "model")
    file = llama_cpp.convert(folder, tmp_path / "m.gguf", arch, kind=gguf.GGMLQuantizationType.Q8_0)
    found = inspected(bringup, file)
    assert (found["format"], found["family"]) == ("gguf", "qwen2")
    assert found["config"]["known"]["hidden_size"] == 48
    names = {each["name"]: each for each in found["tensors"]["groups"]}
    assert names["blk.{0..1}.ffn_down.weight"]["dtype"] == "q8_0"
    assert names["blk.{0..1}.ffn_down.weight"]["bytes"] == 2 * 48 * 64 // 32 * 34
    assert "q8_0" in found["quantization"]


def test_a_gguf_file_of_no_family(bringup: Bringup, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2vl")
    writer.add_block_count(2)
    writer.add_tensor("blk.0.attn_norm.weight", np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = inspected(bringup, tmp_path / "m.gguf")
    assert found["family"] is None
    assert found["config"]["unread"] == {"block_count": 2}
    printed = bringup("inspect", tmp_path / "m.gguf").stdout
    assert "no family supports it" in printed
    assert "bringup init" not in printed


def test_a_wheel(bringup: Bringup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = sharded(tmp_path / "new")
    config = (folder / "config.json").read_bytes()
    wheel(tmp_path / "bringup/pypi", m__safetensors=(folder / "b.safetensors").read_bytes(), config__json=config)
    found = inspected(bringup, "pypi:toy-weights")
    assert found["source"] == "pypi:toy-weights"
    assert {each["name"] for each in found["tensors"]["groups"]} > {"head.weight"}
    assert found["architectures"] == ["NewForCausalLM"]


def test_a_single_file_without_a_config(bringup: Bringup, tmp_path: Path) -> None:
    save_file({"a.0.b": np.zeros((2, 3), np.float32)}, tmp_path / "m.safetensors")
    found = inspected(bringup, tmp_path / "m.safetensors")
    assert found["config"] == {"known": {}, "neutral": {}, "unread": {}, "refused": []}
    assert "architecture: the config names none" in bringup("inspect", tmp_path / "m.safetensors").stdout


def test_quantised_weights(bringup: Bringup, tmp_path: Path) -> None:
    tensors = {"l.0.q_proj.qweight": (2, 8), "l.0.q_proj.qzeros": (1, 1), "l.0.q_proj.scales": (1, 8)}
    config = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 16}}
    folder = tmp_path / "quantised"
    folder.mkdir()
    save_file({name: np.zeros(shape, np.int32) for name, shape in tensors.items()}, folder / "m.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    found = inspected(bringup, folder)["quantization"]
    assert found == {"quant_method": "'awq'", "bits": "4", "group_size": "16", "AWQ": "1 matrix"}


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("nothing", "BU034", "no such file or folder"),
        ("weights.npz", "BU209", "no directory"),
        ("weights.bin", "BU203", "not a state dict"),
        ("weights.h5", "BU205", "a Keras file"),
        ("empty", "BU201", "no weights"),
        ("torn.safetensors", "BU211", ""),
    ],
)
def test_what_cannot_be_read(bringup: Bringup, tmp_path: Path, name: str, code: str, said: str) -> None:
    (tmp_path / "weights.npz").write_bytes(b"PK" * 4)
    (tmp_path / "weights.bin").write_bytes(b"PK")
    (tmp_path / "weights.h5").write_bytes(b"\x89HDF")
    (tmp_path / "torn.safetensors").write_bytes(b"nothing")
    (tmp_path / "empty").mkdir()
    result = bringup("inspect", tmp_path / name)
    assert (result.exit_code, result.stdout) == (2 if code == "BU034" else 1, "")
    assert f"error[{code}]" in result.stderr
    assert said in result.stderr


def test_one_file_of_a_folder_that_is_torn(bringup: Bringup, tmp_path: Path) -> None:
    """The others are shown, with the finding."""
    folder = sharded(tmp_path / "new")
    (folder / "b.safetensors").write_bytes(b"nothing")
    result = bringup("inspect", folder)
    assert result.exit_code == 1
    assert "error[BU211]" in result.stdout
    assert "model.layers.0.norm.weight" in result.stdout


def test_hostile_names_are_harmless(bringup: Bringup, tmp_path: Path) -> None:
    save_file({"a\x1b[2Jb": np.zeros(2, np.float32)}, tmp_path / "m.safetensors")
    assert "a\\x1b[2Jb" in bringup("inspect", tmp_path / "m.safetensors").stdout


def test_usage(bringup: Bringup) -> None:
    assert "SRC is a folder, a file" in bringup("inspect", "--help").stdout
    assert bringup("inspect").exit_code == 2
    assert "error[BU024]" in bringup("inspect", ".", "--format", "xml").stderr
    assert "applies to a checkpoint hf://" in bringup("inspect", ".", "--revision", "main").stderr


def test_headers_alone_are_read(tmp_path: Path) -> None:
    """Neither torch nor numpy is imported for safetensors."""
    folder = sharded(tmp_path / "new")
    script = "import sys; from bringup.cli.main import main\ntry: main()\nfinally: print(sorted(sys.modules))"
    words = [sys.executable, "-c", script, "inspect", str(folder)]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    loaded = set(output.splitlines()[-1].split("'"))
    assert not loaded & {"torch", "numpy", "iree", "transformers", "gguf"}
