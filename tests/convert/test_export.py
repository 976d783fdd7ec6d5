"""`bringup export`: through the adapter and back, bit for bit, for every family; from a bundle; and what is refused."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from bringup.graphs.registry import FAMILIES
from tests.cli.conftest import Bringup
from tests.convert import models
from tests.convert.test_convert import save
from tests.models import family

# gpt-oss is published with its experts as MXFP4, which a graph in floats does not hold; its CASES are not quantised.
ALL = [each.name for each in FAMILIES]


def raw(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Every tensor of a folder's safetensors files: dtype, shape and bytes, by the format's own reader of headers."""
    found: dict[str, tuple[str, list[int], bytes]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, info in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                start, stop = (8 + size + at for at in info["data_offsets"])
                found[name] = info["dtype"], info["shape"], data[start:stop]
    return found


@pytest.mark.parametrize("name", ALL)
def test_every_family_comes_back(bringup: Bringup, tmp_path: Path, name: str) -> None:
    """Each tensor that is read, byte for byte; with what is dropped, each file."""
    module = import_module(f"tests.models.test_{name}")
    case = next(iter(module.CASES))
    written = family.written(module, case, tmp_path / "published")
    words = [*([written.model] if written.model else []), "--checkpoint", written.checkpoint]
    result = bringup("export", *words, "-o", tmp_path / "back")
    assert result.exit_code == 0, result.output
    before, after = raw(written.checkpoint), raw(tmp_path / "back")
    dropped = json.loads((tmp_path / "back" / "bringup.json").read_text("utf-8"))["left_out"]
    assert before.keys() - after.keys() == dropped.keys()
    assert after == {name: tensor for name, tensor in before.items() if name not in dropped}
    if dropped:
        assert "left out: " in result.stderr
        whole = bringup("export", *words, "-o", tmp_path / "whole", "--with-dropped", written.checkpoint)
        assert whole.exit_code == 0, whole.output
    for file in written.checkpoint.glob("*.safetensors"):
        assert (tmp_path / ("whole" if dropped else "back") / file.name).read_bytes() == file.read_bytes()


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """GPT-2 in two files with an index, mask buffers and metadata of its own."""
    tensors, config = models.gpt2()
    tensors |= {f"h.{layer}.attn.bias": np.tril(np.ones((1, 1, 8, 8), np.float32)) for layer in range(2)}
    folder = tmp_path / "sharded"
    folder.mkdir()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, some in parts.items():
        save_file({name: tensors[name] for name in some}, folder / file, {"format": "pt", "by": "hand"})
    places = {name: file for file, some in parts.items() for name in some}
    index = {"metadata": {"total_size": 1, "note": "x"}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    (folder / "config.json").write_text(json.dumps(config, indent=7), "utf-8")
    return folder


def test_a_second_source_of_another_format(bringup: Bringup, tmp_path: Path) -> None:
    tensors, config = models.gpt2()
    name = "h.1.ln_1.weight"
    name = name if name in tensors else f"transformer.{name}"
    np.savez(tmp_path / "second.npz", **{name: tensors[name]})
    save_file({each: array for each, array in tensors.items() if each != name}, tmp_path / "first.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    words = ("--checkpoint", tmp_path / "first.safetensors", "--also", f"{tmp_path / 'second.npz'}:")
    result = bringup("export", "gpt2", *words, "-o", tmp_path / "back")
    assert result.exit_code == 0, result.output
    assert raw(tmp_path / "back")[name][2] == tensors[name].tobytes()


def test_split_and_metadata(bringup: Bringup, tmp_path: Path, sharded: Path) -> None:
    result = bringup("export", "--checkpoint", sharded, "-o", tmp_path / "back")
    assert result.exit_code == 0, result.output
    assert "left out: h.{0..1}.attn.bias (causal-mask buffers)" in result.stderr
    back = tmp_path / "back"
    assert (back / "config.json").read_bytes() == (sharded / "config.json").read_bytes()
    index = json.loads((back / "model.safetensors.index.json").read_text("utf-8"))
    old = json.loads((sharded / "model.safetensors.index.json").read_text("utf-8"))
    assert index["weight_map"] == {n: f for n, f in old["weight_map"].items() if not n.endswith(".attn.bias")}
    assert index["metadata"] == {"note": "x", "total_size": sum(len(data) for _, _, data in raw(back).values())}
    for file in sorted(back.glob("*.safetensors")):
        with safe_open(file, "np") as opened:
            assert opened.metadata() == {"format": "pt", "by": "hand"}
            assert set(opened.keys()) == {n for n, f in index["weight_map"].items() if f == file.name}


def test_rules_without_an_inverse_are_all_listed(bringup: Bringup, tmp_path: Path, sharded: Path) -> None:
    result = bringup("export", "--checkpoint", sharded, "--dtype", "bfloat16", "-o", tmp_path / "back")
    assert result.exit_code == 1
    assert result.stderr.count("error[BU117]") == 4  # embeddings and norms, layers' norms, linear, the head
    assert "h.{0..1}.attn.c_attn.weight" in result.stderr.replace("transformer.", "")
    assert "float32 became bfloat16" in result.stderr
    assert not (tmp_path / "back").exists()


def test_a_wider_dtype_comes_back(bringup: Bringup, tmp_path: Path) -> None:
    import ml_dtypes

    tensors, config = models.llama()
    folder = tmp_path / "llama"
    folder.mkdir()
    save_file({n: w.astype(ml_dtypes.bfloat16) for n, w in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    assert bringup("export", "--checkpoint", folder, "--dtype", "float32", "-o", tmp_path / "back").exit_code == 0
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_what_a_source_of_dropped_tensors_lacks(bringup: Bringup, tmp_path: Path, sharded: Path) -> None:
    assert bringup("export", "--checkpoint", sharded, "-o", tmp_path / "back").exit_code == 0
    words = ["--with-dropped", tmp_path / "back", "-o", tmp_path / "other"]
    result = bringup("export", "--checkpoint", sharded, *words)
    assert "error[BU143]" in result.stderr
    assert "lacks `h.0.attn.bias`, `h.1.attn.bias`" in result.stderr


@pytest.mark.parametrize(
    ("shape", "dtype"), [((5,), "float32"), ((2, 1), "float32"), ((2,), "int32"), ((1,), "float64")]
)
def test_dropped_tensors_of_another_form(bringup: Bringup, tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    """They have no room in the file, or their bytes would be numbers of another dtype."""
    tensors, config = models.llama(layers=1)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    source = save(tmp_path / "source", {**tensors, name: np.ones(2, np.float32)}, config)
    other = save(tmp_path / "other", {**tensors, name: np.ones(shape, dtype)}, config)
    result = bringup("export", "--checkpoint", source, "--with-dropped", other, "-o", tmp_path / "back")
    assert result.exit_code == 1, result.output
    message = f"error[BU143]: `{other}` has `{name}` as {dtype} {list(shape)}, the model's is float32 [2]"
    assert message in result.stderr
    assert not (tmp_path / "back").exists()


def test_a_bundle(bringup: Bringup, tmp_path: Path, sharded: Path) -> None:
    """With its checkpoint, whose split it takes; without; and with the place to which it has moved."""
    bundle, moved = tmp_path / "b.bundle", tmp_path / "moved"
    words = ["--target", "torch", "--max-seq-len", 8, "-o", bundle]
    assert bringup("compile", "--checkpoint", sharded, *words).exit_code == 0
    wanted = {name: tensor for name, tensor in raw(sharded).items() if not name.endswith(".attn.bias")}
    two = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]

    def exported(name: str, *more: str | Path) -> tuple[list[str], str]:
        result = bringup("export", bundle, *more, "-o", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert raw(tmp_path / name) == wanted
        return sorted(file.name for file in (tmp_path / name).glob("*.safetensors")), result.stderr

    assert exported("with")[0] == two
    assert bringup("diff", bundle, bundle).stdout == "no differences\n"
    other = bringup("diff", bundle, sharded)
    assert (other.exit_code, "only in the first" in other.stdout) == (1, True)
    sharded.rename(moved)
    files, said = exported("without")
    assert (files, "no such file or folder" in said) == (["model.safetensors"], True)
    assert bringup("check", "--checkpoint", tmp_path / "without").exit_code == 0
    assert exported("moved-to", "--checkpoint", moved)[0] == two
