"""Folders: shards, indexes, configs, and sources that are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bringup.adapters.sources.open_checkpoint import open_checkpoint
from tests.adapters.written import ONE, raises, shards


def test_the_index_decides(tmp_path: Path) -> None:
    """A file that it does not name, and a tensor that only its shard names."""
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
    shards(tmp_path, index, x={"a": ONE, "extra": ONE}, y={"b": ONE}, consolidated={"a": ONE * 3})
    (tmp_path / "config.json").write_text('{"model_type": "toy"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    checkpoint = open_checkpoint(str(tmp_path))
    assert set(checkpoint.headers) == {"a", "b", "extra"}
    assert checkpoint.read(checkpoint.headers["a"]).tolist() == [1, 1]
    assert checkpoint.config == {"model_type": "toy"}
    assert checkpoint.tokenizer == tmp_path / "tokenizer.json"
    assert set(checkpoint.provenance["files"]) == {"x.safetensors", "y.safetensors"}
    assert not checkpoint.is_dummy
    (warning,) = checkpoint.findings
    assert (warning.code, warning.severity) == ("BU216", "warning")
    assert "`extra`" in warning.message
    by_file = open_checkpoint(str(tmp_path / "model.safetensors.index.json"))
    assert by_file.headers == checkpoint.headers


def test_one_tensor_in_two_shards(tmp_path: Path) -> None:
    """transformers takes the last, whatever the index says."""
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
    shards(tmp_path, index, x={"a": ONE}, y={"a": ONE * 2, "b": ONE})
    with raises("BU217", r"`a` is in `x.safetensors` and in `y.safetensors`"):
        open_checkpoint(str(tmp_path))


def test_two_sets_of_weights(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "x.safetensors"}}
    shards(tmp_path, index, x={"a": ONE}, model={"a": ONE * 2})
    with raises("BU228", "two sets of weights: `model.safetensors`, and the files that"):
        open_checkpoint(str(tmp_path))
    for name, value in (("model.safetensors", 2), ("model.safetensors.index.json", 1)):
        named = open_checkpoint(str(tmp_path / name))
        assert named.read(named.headers["a"]).tolist() == [value, value]
    (tmp_path / "model.safetensors").unlink()
    assert open_checkpoint(str(tmp_path)).findings == []


def test_an_adapter_of_peft_next_to_the_weights(tmp_path: Path) -> None:
    shards(tmp_path, model={"a": ONE}, adapter_model={"base_model.model.a.lora_A.weight": ONE})
    assert open_checkpoint(str(tmp_path)).findings == []  # without its config peft does not read it
    (tmp_path / "adapter_config.json").write_text("{}")
    with raises("BU132", "adapter_model.safetensors"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    assert list(open_checkpoint(str(tmp_path)).headers) == ["base_model.model.a.lora_A.weight"]


def test_a_part_of_a_folder(tmp_path: Path) -> None:
    """What is wrong with some files is said, and the others are read."""
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors", "c": "z.safetensors", "d": "x.safetensors"}}
    shards(tmp_path, index, x={"a": ONE}, z={"c": ONE})
    (tmp_path / "z.safetensors").write_bytes(b"no header")
    opened = open_checkpoint(str(tmp_path), partial=True)
    assert list(opened.headers) == ["a"]
    assert [(f.code, f.sources) for f in opened.findings] == [
        ("BU215", ("b",)),
        ("BU211", ("c",)),
        ("BU216", ("d",)),
    ]
    (tmp_path / "model.safetensors.index.json").write_text("{")
    (tmp_path / "z.safetensors").unlink()
    opened = open_checkpoint(str(tmp_path), partial=True)
    assert (list(opened.headers), [f.code for f in opened.findings]) == (["a"], ["BU214"])


def test_model_safetensors_stands_alone(tmp_path: Path) -> None:
    shards(tmp_path, model={"a": ONE}, consolidated={"a": ONE * 3, "tok": ONE})
    assert list(open_checkpoint(str(tmp_path)).headers) == ["a"]


def test_missing_shards_are_all_named(tmp_path: Path) -> None:
    weight_map = {name: f"{name}.safetensors" for name in "abc"}
    shards(tmp_path, {"weight_map": weight_map}, a={"a": ONE})
    with raises("BU215", r"2 of 3 .*`b.safetensors`, `c.safetensors`"):
        open_checkpoint(str(tmp_path))


def test_missing_numbered_shards_without_an_index(tmp_path: Path) -> None:
    shards(tmp_path, **{"model-00002-of-00003": {"a": ONE}})
    with raises("BU215", r"`model-00001-of-00003.safetensors`, `model-00003-of-00003.safetensors`"):
        open_checkpoint(str(tmp_path))


def test_files_without_an_index(tmp_path: Path) -> None:
    shards(tmp_path, **{"m-00001-of-00002": {"a": ONE}, "m-00002-of-00002": {"b": ONE}})
    assert set(open_checkpoint(str(tmp_path)).headers) == {"a", "b"}
    shards(tmp_path, again={"b": ONE})
    with raises("BU217", "`b`"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("code", "index"),
    [
        ("BU216", {"weight_map": {"a": "x.safetensors", "ghost": "x.safetensors"}}),
        ("BU214", {"weight_map": {}}),
        ("BU214", {"weight_map": ["x.safetensors"]}),
        ("BU214", {}),
        ("BU214", []),
        ("BU214", {"weight_map": {"a": 3}}),
        ("BU214", {"weight_map": {"a": "../x.safetensors"}}),
        ("BU214", {"weight_map": {"a": "/etc/passwd"}}),
        ("BU214", {"weight_map": {"a": "x\0.safetensors"}}),
        ("BU214", {"weight_map": {"a": ""}}),
    ],
)
def test_bad_indexes(tmp_path: Path, code: str, index: object) -> None:
    shards(tmp_path, index, x={"a": ONE})
    with raises(code):
        open_checkpoint(str(tmp_path))


def test_a_tensor_in_two_shards_that_the_index_does_not_name(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
    shards(tmp_path, index, x={"a": ONE, "c": ONE}, y={"b": ONE, "c": ONE})
    with raises("BU216", "`c`"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1, "a": 2}', "\xff"])
def test_bad_configs(tmp_path: Path, text: str) -> None:
    shards(tmp_path, model={"a": ONE})
    (tmp_path / "config.json").write_text(text, "latin-1")
    with raises("BU202", "config.json"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("code", "source", "match"),
    [
        ("BU034", "{tmp}/modle.safetensors", "did you mean `{tmp}/model.safetensors`"),
        ("BU201", "{tmp}/empty", "no weights"),
        ("BU201", "{tmp}/keras", "tf_model.h5"),
        ("BU205", "{tmp}/keras/tf_model.h5", "a Keras file"),
        ("BU034", "openai/gpt2", "did you mean `hf://openai/gpt2`"),
        ("BU035", "https://", "not an address"),
        ("BU035", "hf:gpt2", "hf://"),
        ("BU035", "hf://a/b/c/d", "hf://ORG/NAME"),
        ("BU035", "hf://../../etc", "hf://ORG/NAME"),
        ("BU035", "pypi:--index-url=http://x", "pypi:PACKAGE"),
        ("BU035", "dummy", "need a model"),
        ("BU035", "s3://bucket/model", "modelscope://ORG/NAME, https://HOST/PATH"),
    ],
)
def test_sources_that_are_none(tmp_path: Path, code: str, source: str, match: str) -> None:
    shards(tmp_path, model={"a": ONE})
    (tmp_path / "empty").mkdir()
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras/tf_model.h5").write_bytes(b"\x89HDF")
    with raises(code, match.format(tmp=tmp_path)):
        open_checkpoint(source.format(tmp=tmp_path))


def test_reading_headers_imports_no_numpy(tmp_path: Path) -> None:
    shards(tmp_path, model={"a": ONE})
    code = (
        "import sys; from bringup.adapters.sources.open_checkpoint import open_checkpoint as o;"
        f"assert o({str(tmp_path)!r}).headers;"
        "assert not {'numpy','torch','ml_dtypes','gguf','safetensors','tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
