"""Findings on the config of a GGUF file name the keys of its metadata."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from bringup.compile.check.checker import check_job
from bringup.compile.check.facts.config_keys import ConfigWords, paths_of
from bringup.compile.job import open_job
from bringup.diagnostics import BringupError
from tests.adapters import gguf_families, test_dialects
from tests.adapters.gguf_families import CASES


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        ("llama", "feed_forward_length", 77, "BU102"),
        ("llama", "attention.head_count_kv", 3, "BU102"),
        ("llama", "attention.head_count", 7, "BU102"),
        ("llama", "attention.layer_norm_rms_epsilon", -1.0, "BU121"),
        ("qwen3-moe", "expert_used_count", 99, "BU124"),
        ("qwen3-moe", "expert_feed_forward_length", 99, "BU102"),
    ],
)
def test_the_key_that_is_to_be_corrected(
    name: str, key: str, value: object, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = gguf.GGUFWriter.write_header_to_file

    def changed(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][f"{writer.arch}.{key}"].value = value
        header(writer)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", changed)
    _, file = test_dialects.gguf_of(name, tmp_path)
    (finding,) = check_job(open_job(checkpoint=str(file))).findings
    assert finding.code == code
    assert f"`{name.replace('-', '')}.{key}`" in finding.message
    if code == "BU102":
        assert f"`{name.replace('-', '')}.{key}`" in finding.help


@pytest.mark.parametrize("value", [1, 3, 900])
@pytest.mark.parametrize("name", ["gpt2", "bloom", "qwen", "gpt-oss", "exaone"])
def test_a_number_of_blocks_that_is_wrong(name: str, value: int, tmp_path: Path) -> None:
    """The file has two blocks, and its tensors show it."""
    _, file = gguf_families.write(CASES[name], tmp_path)
    reader = gguf.GGUFReader(file, "r+")
    (key,) = (key for key in reader.fields if key.endswith(".block_count"))
    field = reader.fields[key]
    assert field.parts[field.data[0]][0] == 2
    field.parts[field.data[0]][0] = value
    reader.data.flush()
    (finding,) = check_job(open_job(checkpoint=str(file))).findings
    assert finding.code == ("BU101" if value > 2 else "BU105")
    ends = f"`{key}` of m.gguf is {value}, and the checkpoint ends at blk.1: set it to 2, or "
    assert finding.help.startswith(ends), finding.help


def test_no_blocks(tmp_path: Path) -> None:
    _, file = gguf_families.write(CASES["gpt2"], tmp_path)
    reader = gguf.GGUFReader(file, "r+")
    field = reader.fields["gpt2.block_count"]
    field.parts[field.data[0]][0] = 0
    reader.data.flush()
    with pytest.raises(BringupError, match=r"needs a number above 0 in its metadata under `gpt2.block_count`"):
        open_job(checkpoint=str(file))


def test_layers_of_a_draft_are_counted(tmp_path: Path) -> None:
    """The value to set is GGUF's, which counts the layers of drafts."""
    words = {"num_hidden_layers": 2, "text": {"layers": 7, "on": True}}
    assert list(paths_of(words, 7)) == [("text", "layers")]
    assert list(paths_of(words, 1)) == []
    _, file = gguf_families.write(CASES["glm4-moe"], tmp_path)
    job = open_job(checkpoint=str(file))
    assert job.checkpoint.gguf
    values = {**job.checkpoint.gguf.values, "block_count": 4, "nextn_predict_layers": 1}
    gguf_file = replace(job.checkpoint.gguf, values=values)
    config = {**job.config, "num_hidden_layers": 3}
    found = ConfigWords(replace(job, checkpoint=replace(job.checkpoint, gguf=gguf_file), config=config)).count(
        "blk", 3, 2
    )
    assert found == ("`glm4moe.block_count` of m.gguf is 4, 3 without the layers of drafts", 3)
